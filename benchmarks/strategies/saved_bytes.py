"""Bytes that autograd saves for the backward of a segment that trains one block (LoLa-DEFT), by the block's depth."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.head_gating.blocks import Blocks, vit_small
from benchmarks.report import Figure
from fleetune.models.segment import SegmentRunner

TARGET = 0.1
BLOCKS = 8


def saved_bytes_by_depth(folder: Path, blocks: int, samples: int) -> list[int]:
    """Return the saved bytes of one forward where only one block trains its adapters: the last block first.

    The worker's segment runner holds all blocks. Weights count in no depth, and a tensor that several operations save
    counts once.
    """
    workload = vit_small(samples, lora=True)
    config = {**(workload.request.config or {}), "num_hidden_layers": blocks}
    made = Blocks(replace(workload, name="saved", request=replace(workload.request, config=config)), folder)
    return [_saved_bytes(made, name) for name in reversed(made.names)]


def linearity(saved: list[int]) -> float:
    """Return the largest deviation from the straight line through all depths, relative to the line."""
    depths = np.arange(1, len(saved) + 1)
    line = np.polyval(np.polyfit(depths, saved, 1), depths)
    return float(np.max(np.abs(np.array(saved) / line - 1)))


def saved_bytes_figures(folder: Path, quick: bool) -> list[Figure]:
    """Return how far saved bytes are from linear in the depth, and how many a block adds."""
    saved = saved_bytes_by_depth(folder, BLOCKS // 2 if quick else BLOCKS, samples=1 if quick else 4)
    last, first = saved[0] / 1e6, saved[-1] / 1e6
    about = f"ViT-small, {len(saved)} blocks: {last:.1f} MB at the last block, {first:.1f} MB at the first"
    return [
        Figure(
            name="lola-deft_saved_bytes_nonlinearity",
            value=linearity(saved),
            unit="of the line",
            target=TARGET,
            better="lower",
            about=about,
        ),
        Figure(
            name="lola-deft_saved_bytes_first_over_last",
            value=saved[-1] / saved[0],
            unit="x",
            better="lower",
            about="training the deepest block beside the last one",
        ),
    ]


def _saved_bytes(blocks: Blocks, trained: str) -> int:
    segment = blocks.segment({}, trained=trained)
    weights = {each.untyped_storage().data_ptr() for each in _weights(segment)}
    saved: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage  # held, so that no later tensor gets its address
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs = blocks.forward(segment)
    assert any(output.requires_grad for output in outputs)
    return sum(storage.nbytes() for storage in saved.values())


def _weights(segment: SegmentRunner) -> list[Any]:
    return [*segment.parameters.values(), *segment.buffers.values()]
