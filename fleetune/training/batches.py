"""Batches of the training split: all devices draw the same samples, and each reads its own rows."""

from pathlib import Path

import numpy as np
import torch

from fleetune.contracts.plan import Plan
from fleetune.data import PreparedData, batch_indices
from fleetune.models.loss import count_targets


class Batches:
    """Inputs and labels of the training split, by round, micro-batch and span of samples."""

    def __init__(self, folder: Path, plan: Plan, seed: int, device: torch.device) -> None:
        self._data = PreparedData(folder)
        self._plan = plan
        self._seed = seed
        self._device = device
        self._indices = np.empty(0, dtype=np.int64)
        self._targets = 0

    @property
    def task(self) -> str:
        """The task that the data were prepared for."""
        return self._data.task

    def start_round(self, round: int, with_targets: bool) -> None:
        """Draw the round's batch; count its targets if this device computes the loss."""
        size = self._data.size("train")
        self._indices = batch_indices(size, self._plan.batch_samples, self._seed, round)
        if with_targets:
            self._targets = count_targets(self._data.rows("train", self._indices)["labels"], self.task)

    @property
    def targets(self) -> int:
        """The number of targets in the whole batch."""
        return self._targets

    def inputs(self, micro_batch: int, span: tuple[int, int]) -> dict[str, torch.Tensor]:
        """Return model inputs by name, each of shape [samples of the span, ...]."""
        rows = self._data.rows("train", self._span(micro_batch, span))
        return {name: torch.from_numpy(a).to(self._device) for name, a in rows.items() if name != "labels"}

    def labels(self, micro_batch: int, span: tuple[int, int]) -> torch.Tensor:
        """Return the labels of the span."""
        rows = self._data.rows("train", self._span(micro_batch, span))
        return torch.from_numpy(rows["labels"]).to(self._device)

    def _span(self, micro_batch: int, span: tuple[int, int]) -> np.ndarray:
        start = micro_batch * self._plan.micro_batch_samples
        return self._indices[start + span[0] : start + span[1]]
