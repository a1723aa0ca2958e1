"""Starts of runs that lie in a store: checkpoints by their digests, wherever the folder of the store is now.

A run's record names the folder that training started from by its path, and a store may be moved or copied. What the
folder holds is named by the digest in that path. So a run that is repeated finds it in the store at hand, and stage
keys have the digest in place of the path.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fleetune.contracts.checkpoint_path import ADAPTER, CHECKPOINT, MODEL, checkpoint_digest
from fleetune.contracts.run_config import ModelRequest, RunConfig
from fleetune.store import Store


def model_folder(checkpoint: Path) -> Path:
    """The Hugging Face folder or PEFT adapter in the folder of a checkpoint."""
    return checkpoint / ADAPTER if (checkpoint / ADAPTER).is_dir() else checkpoint / MODEL


def start_digest(model: ModelRequest) -> str:
    """Digest of the checkpoint of a store that a model starts from; empty for any other start."""
    return checkpoint_digest(_start(model))


def check_start(model: ModelRequest) -> None:
    """Refuse a start in a store, whichever it is, that is not what was stored there."""
    if digest := start_digest(model):
        store = Store(Path(_start(model)).parents[3])
        if store.has(CHECKPOINT, digest):
            store.folder(CHECKPOINT, digest)


def in_this_store(store: Store, config: RunConfig) -> RunConfig:
    """The config of a past run with its start in this store, if the folder that it names is gone and the store has it.

    Otherwise the config as it is: a start that is nowhere is refused by its path when it is read.
    """

    def found(path: str) -> str:
        digest = checkpoint_digest(path)
        if not digest or Path(path).is_dir() or not store.has(CHECKPOINT, digest):
            return path
        return str(store.folder(CHECKPOINT, digest) / Path(path).name)

    return _with_paths(config, found)


def without_place(config: RunConfig) -> RunConfig:
    """The config with starts in a store named relative to it, which is the same after the store was moved."""
    return _with_paths(config, lambda path: f"{CHECKPOINT}/{digest}" if (digest := checkpoint_digest(path)) else path)


def move_note(past: RunConfig, config: RunConfig) -> str:
    """A sentence for a run that starts from a checkpoint at another path than the run that it repeats; else empty."""
    before, now = (_start(one.model) for one in (past, config))
    if before == now or not checkpoint_digest(before) or checkpoint_digest(before) != checkpoint_digest(now):
        return ""
    return f"{before} is gone; the same checkpoint is read from this store: {now}"


def _start(model: ModelRequest) -> str:
    return (model.lora.start if model.lora else model.source) or ""


def _with_paths(config: RunConfig, changed: Callable[[str], str]) -> RunConfig:
    model = config.model
    if model.source and (source := changed(model.source)) != model.source:
        model = replace(model, source=source)
    if model.lora and model.lora.start and (start := changed(model.lora.start)) != model.lora.start:
        model = replace(model, lora=replace(model.lora, start=start))
    return config if model is config.model else replace(config, model=model)
