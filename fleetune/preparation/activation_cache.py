"""Computes what a frozen prefix makes of every training sample, and adds it to the prepared data."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import numpy as np
import psutil
import torch
from torch import nn

from fleetune.contracts import json_io
from fleetune.contracts.task import Progress
from fleetune.data.prepared_data import INFO, Array, ArrayInfo, PreparedData, file_digests
from fleetune.data.splits import TRAIN
from fleetune.errors import Refused
from fleetune.formatting import gigabytes, megabytes
from fleetune.models.frozen_prefix import FrozenPrefix, frozen_prefix, without_prefix
from fleetune.models.graph import Graph
from fleetune.models.meta_run import without_device
from fleetune.models.randomness import WithoutDropout
from fleetune.models.segment import SegmentRunner
from fleetune.models.units import state_by_unit
from fleetune.models.weights import WeightReader

BATCH_SAMPLES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedModel:
    """A model whose frozen first units are to be replaced by stored activations."""

    graph: Graph
    module: Callable[[], nn.Module]
    """Makes the whole model on the meta device."""
    weights: WeightReader
    progress: Progress


def cache_activations(model: CachedModel, data_folder: Path) -> Graph:
    """Store the activations of the training samples in `data_folder`; returns the graph of the units that are left.

    The prefix runs as in evaluation, without dropout. Refused: nothing is frozen.
    """
    skeleton = model.module()
    prefix = frozen_prefix(model.graph, skeleton)
    if prefix is None:
        raise Refused(
            "model: cache_activations is set, but no first units of the model are frozen whose results can be divided "
            "by samples; freeze more with model.freeze, give adapters to later blocks alone (model.lora.targets), or "
            "leave cache_activations out"
        )
    _check_memory(model.graph, skeleton, prefix)
    data = PreparedData(data_folder)
    stored = tuple(_write(model, prefix, data))
    size_bytes = sum(np.dtype(each.dtype).itemsize * int(np.prod(each.shape)) for each in stored)
    sentence = (
        f"the activations of the first {prefix.count} of {len(model.graph.units)} units, which are frozen, are stored "
        f"({megabytes(size_bytes)} for {data.size(TRAIN)} samples); these units run no more, and had no dropout"
    )
    splits = tuple(
        replace(split, arrays=(*split.arrays, *stored)) if split.name == TRAIN else split for split in data.info.splits
    )
    files = {
        **data.info.files,
        **file_digests(data_folder, [data_folder / TRAIN / f"{one.name}.npy" for one in stored]),
    }
    notes = (*data.info.notes, sentence)
    json_io.write(replace(data.info, splits=splits, notes=notes, files=files), data_folder / INFO)
    return without_prefix(model.graph, prefix)


def _check_memory(graph: Graph, skeleton: nn.Module, prefix: FrozenPrefix) -> None:
    """Refuse a prefix whose weights this machine's memory cannot hold."""
    state, named = (
        state_by_unit(graph, skeleton),
        {**dict(skeleton.named_parameters()), **dict(skeleton.named_buffers())},
    )
    names = {name for unit in graph.units[: prefix.count] for name in state[unit.name]}
    needed = sum(named[name].numel() * named[name].element_size() for name in names if name in named)
    free = psutil.virtual_memory().available
    if needed > free:
        raise Refused(
            f"model: the frozen first units take {gigabytes(needed, 1)}, and {gigabytes(free, 1)} of this machine's "
            "memory are free; run it where there is more, or leave cache_activations out"
        )


def _write(model: CachedModel, prefix: FrozenPrefix, data: PreparedData) -> list[ArrayInfo]:
    """Write one array per stored value, batch by batch; a half-written one is never listed."""
    names = tuple(unit.name for unit in model.graph.units[: prefix.count])
    segment = SegmentRunner(without_device(model.graph), names, model.module(), torch.device("cpu"))
    segment.load(model.weights)
    segment.train(False)
    samples = data.size(TRAIN)
    files: dict[str, IO[bytes]] = {}
    found: dict[str, ArrayInfo] = {}
    try:
        for first in range(0, samples, BATCH_SAMPLES):
            indices = range(first, min(first + BATCH_SAMPLES, samples))
            rows = data.rows(TRAIN, list(indices), segment.graph.inputs)
            given = {n: torch.from_numpy(rows[name]) for name, n in segment.graph.inputs.items() if name in rows}
            before = torch.random.get_rng_state()
            with torch.no_grad(), WithoutDropout():
                made = segment.run(given, len(indices))
            if not torch.equal(before, torch.random.get_rng_state()):
                raise Refused(
                    "model: its frozen first units draw random numbers that are no dropout, such as stochastic depth, "
                    "so that their activations differ from round to round; leave cache_activations out"
                )
            for name, number in prefix.cached.items():
                array = _as_array(made[number])
                if name not in files:
                    found[name] = ArrayInfo(name=name, dtype=array.dtype.name, shape=(samples, *array.shape[1:]))
                    files[name] = _begin(data.folder / TRAIN / f"{name}.npy", found[name])
                files[name].write(array.tobytes())
            model.progress("caching activations", indices.stop, samples, "samples")
    finally:
        for file in files.values():
            file.close()
    return list(found.values())


def _as_array(value: torch.Tensor) -> Array:
    """Return a value as numpy has it; bfloat16 as float32, which holds it exactly."""
    held = value.float() if value.dtype in (torch.bfloat16, torch.float16) else value
    array: Array = held.contiguous().numpy()
    return array


def _begin(path: Path, info: ArrayInfo) -> IO[bytes]:
    """Open an array's file and write its header; written, not mapped, a full disk is an error and no signal."""
    file = path.open("wb")
    described = {"descr": np.dtype(info.dtype).str, "fortran_order": False, "shape": info.shape}
    np.lib.format.write_array_header_2_0(file, described)
    return file
