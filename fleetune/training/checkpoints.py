"""State that training can go on from under any plan: tensors by name, never by device or segment.

    checkpoints/round-000050/SEGMENT.safetensors ...   parameters, buffers and optimizer state, each by name
    checkpoints/round-000050/round.json                written last: without it the checkpoint is not whole

Only the newest whole checkpoint is kept.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fleetune.contracts import wire
from fleetune.contracts.record import record
from fleetune.errors import Refused
from fleetune.models.segment import Segment
from fleetune.training.updates import Updates

CHECKPOINTS = "checkpoints"
WHOLE = "round.json"
MODEL, OPTIMIZER = "model|", "optimizer|"  # '|' appears in no parameter name


@record
class CheckpointRound:
    """Marks a checkpoint as whole."""

    round: int
    """Rounds that are in it."""
    files: tuple[str, ...]


def folder_of(work: Path, round: int) -> Path:
    """Where the state after `round` rounds goes."""
    return work / CHECKPOINTS / f"round-{round:06d}"


def newest_whole(work: Path) -> tuple[Path, CheckpointRound] | None:
    """The newest checkpoint of which every file is there."""
    for folder in sorted((work / CHECKPOINTS).glob("round-*"), reverse=True):
        if not (folder / WHOLE).exists():
            continue
        mark = wire.read(CheckpointRound, folder / WHOLE)
        if all((folder / name).exists() for name in mark.files):
            return folder, mark
    return None


def write_shard(folder: Path, name: str, segment: Segment, updates: Updates) -> str:
    """Write what one segment must not lose; returns the file's name."""
    trained = {n: p.detach() for n, p in segment.parameters.items() if p.requires_grad}
    tensors = {MODEL + n: t for n, t in {**trained, **segment.buffers}.items()}
    tensors.update({OPTIMIZER + n: t for n, t in updates.state().items()})
    folder.mkdir(parents=True, exist_ok=True)
    file = f"{name}.safetensors"
    part = folder / f"{file}.part"
    save_file({n: t.cpu().contiguous() for n, t in tensors.items()}, part)
    with part.open("rb") as written:
        os.fsync(written.fileno())
    part.replace(folder / file)
    return file


def mark_whole(work: Path, round: int, files: tuple[str, ...]) -> Path:
    """Declare a checkpoint whole, then drop older ones."""
    folder = folder_of(work, round)
    wire.write(CheckpointRound(round=round, files=files), folder / WHOLE)
    for other in (work / CHECKPOINTS).glob("round-*"):
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)  # a worker that shares the folder may be at it, too
    return folder


def drop_older(work: Path, round: int) -> None:
    """Drop what was saved before `round`, on a device whose folder nobody else tidies."""
    for other in (work / CHECKPOINTS).glob("round-*"):
        if other.name < folder_of(work, round).name:
            shutil.rmtree(other, ignore_errors=True)


def restore(folder: Path, segment: Segment, updates: Updates) -> None:
    """Put a checkpoint's state into a segment, whatever plan wrote it."""
    names = set(segment.parameters) | set(segment.buffers)
    segment.put({n: t for n, t in _tensors(folder, MODEL) if n in names})
    updates.restore(dict(_tensors(folder, OPTIMIZER, {n for n, p in segment.parameters.items() if p.requires_grad})))


def trained_tensors(folder: Path) -> Mapping[str, torch.Tensor]:
    """Every parameter and buffer of a checkpoint, by name."""
    return dict(_tensors(folder, MODEL))


def _tensors(folder: Path, prefix: str, only: set[str] | None = None) -> Iterator[tuple[str, torch.Tensor]]:
    mark = wire.read(CheckpointRound, folder / WHOLE)
    for name in mark.files:
        try:
            with safe_open(folder / name, framework="pt") as file:
                for key in file.keys():
                    if key.startswith(prefix) and (only is None or key.split(":", 1)[-1] in only):
                        yield key.removeprefix(prefix), file.get_tensor(key)
        except (OSError, SafetensorError) as error:
            raise Refused(
                f"{folder / name}: not a readable checkpoint file ({error}); delete its folder and train again"
            ) from None
