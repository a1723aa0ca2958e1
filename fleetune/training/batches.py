"""Samples of each lane: which rows of the data it owns, and the inputs and labels of its micro-batches.

Lanes without data of their own are dealt the rows of the training split, each to one lane; a single lane owns them all.
Lanes of which a collector makes one step share every round's batch instead: each takes a piece of it, so that every
block of the model learns from all rows. Where data are local, the lane of a device owns all rows that lie on it.

Lanes of a plan that follows another one, when devices are lost or an interrupted training goes on, keep the rows and
seeds that the first plan gave them.
A lane with fewer rows than a round has samples goes through them again, in a new order: its rounds cut the permutations
of its own epochs into batches.
"""

import math
from collections.abc import Collection, Mapping
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch

from fleetune.contracts.plan import Lane, Plan
from fleetune.data.prepared_data import LABELS, PreparedData, batch_indices, check_files
from fleetune.errors import Refused
from fleetune.models.device_memory import DeviceCopies
from fleetune.models.loss import count_targets

SEED_STRIDE = 1_000_003
"""Distance of the seeds of two lanes, which draw batches and dropout masks of their own."""


def lane_seed(plan: Plan, lane: Lane, seed: int) -> int:
    """Return the seed of a lane's batches and dropout masks; the first lane's is the run's. plan: the first one."""
    return seed + SEED_STRIDE * _number(plan, lane)


def _number(plan: Plan, lane: Lane) -> int:
    """Return the number of a lane in the plan that dealt the rows; a single lane may have any name."""
    return [each.name for each in plan.lanes].index(lane.name) if len(plan.lanes) > 1 else 0


def dealing_plan(before: Plan | None, plan: Plan) -> Plan:
    """Return the plan whose dealing holds on when a training goes on by another plan.

    before: the one that has dealt until now. It holds on if it has all lanes of the other one with as many
    micro-batches, and their steps in the same proportions; otherwise, and where lanes own no rows, samples are dealt
    anew.
    """
    if before is None or len(before.lanes) == 1 or shares_batches(before):
        return plan
    if before.micro_batch_samples != plan.micro_batch_samples:
        return plan
    known = {lane.name: lane for lane in before.lanes}
    if any(lane.name not in known for lane in plan.lanes):
        return plan
    pairs = [(known[lane.name], lane) for lane in plan.lanes]
    alike = all(before.micro_batches_of(old) == plan.micro_batches_of(new) for old, new in pairs)
    paces = {Fraction(_steps(plan, new), _steps(before, old)) for old, new in pairs}
    return before if alike and len(paces) == 1 else plan


def _steps(plan: Plan, lane: Lane) -> int:
    """Return a lane's steps between two averages, or in one round where there are none."""
    return lane.rounds or plan.average_every_rounds or 1


def lane_samples(plan: Plan, data_folder: Path, local: Mapping[str, int]) -> dict[str, int]:
    """Return the number of training samples that each lane owns; they are the weights of an average over lanes.

    Of lanes that share batches, those of its piece.

    local: device -> number of the samples that lie on it; empty: the rows in `data_folder` are dealt. A lane whose
    device is gone is left out. Refused: a lane without any.
    """
    if local:
        owners = {lane.name: lane.segments[0].devices[0] for lane in plan.lanes}
        return {lane: local[owner] for lane, owner in owners.items() if owner in local}
    if shares_batches(plan):
        return {lane.name: plan.micro_batch_samples * plan.micro_batches_of(lane) for lane in plan.lanes}
    train_samples = PreparedData(data_folder).size("train")
    counts = np.bincount(_dealt(plan, train_samples), minlength=len(plan.lanes))
    found = {lane.name: int(count) for lane, count in zip(plan.lanes, counts, strict=True)}
    if not all(found.values()):
        raise Refused(f"training: {train_samples} training samples are too few for {len(found)} lanes; add data")
    return found


def lane_weights(plan: Plan, samples: Mapping[str, int]) -> dict[str, float]:
    """Return each lane's share of the samples of a plan's lanes.

    samples: by lane, as `lane_samples` returns them of the first plan, which may have more lanes.
    """
    own = {lane.name: samples[lane.name] for lane in plan.lanes}
    total = sum(own.values())
    return {name: count / total for name, count in own.items()}


def lane_rows(plan: Plan, lane: Lane, train_samples: int, seed: int) -> np.ndarray:
    """Return the rows of the training split that a lane draws from: int64 [samples]. plan: the first one."""
    if len(plan.lanes) == 1 or shares_batches(plan):
        return np.arange(train_samples)
    dealt = np.random.Generator(np.random.PCG64([seed, train_samples])).permutation(train_samples)
    own = _dealt(plan, train_samples) == _number(plan, lane)
    return np.asarray(dealt[own], dtype=np.int64)


def shares_batches(plan: Plan) -> bool:
    """Return whether lanes take pieces of common batches, unless their data are local."""
    return bool(plan.collector) and len(plan.lanes) > 1


def lane_batch(plan: Plan, lane: Lane, rows: np.ndarray, seed: int, step: int, local: bool = False) -> np.ndarray:
    """Return the rows of the batch of a lane's step (from 0), in order: int64 [samples]. plan: the first one.

    rows: those that the lane draws from. seed: the run's. local: whether they lie on its device.
    """
    sizes = [plan.micro_batch_samples * plan.micro_batches_of(each) for each in plan.lanes]
    number = _number(plan, lane)
    if shares_batches(plan) and not local:
        first = sum(sizes[:number])
        drawn = batch_indices(len(rows), sum(sizes), seed, step)[first : first + sizes[number]]
    else:
        drawn = batch_indices(len(rows), sizes[number], lane_seed(plan, lane, seed), step)
    return np.asarray(rows[drawn])


def _dealt(plan: Plan, train_samples: int) -> np.ndarray:
    """Return the number of the lane that each dealt row goes to, in turn, evenly mixed.

    A lane of fewer micro-batches or steps gets fewer rows, so that all lanes pass through their rows at the same pace
    and an average weighted by samples weighs every sample alike.
    """
    paces = [plan.micro_batches_of(lane) * _steps(plan, lane) for lane in plan.lanes]
    counts = [pace // math.gcd(*paces) for pace in paces]
    places = [(k + 0.5) / count for count in counts for k in range(count)]
    pattern = np.repeat(np.arange(len(counts)), counts)[np.argsort(places, kind="stable")]
    return np.asarray(np.resize(pattern, train_samples))


class Batches:
    """Inputs and labels of one lane's training samples, by round, micro-batch and span of samples."""

    def __init__(
        self, folder: Path, plan: Plan, lane: Lane, seed: int, device: torch.device, local: bool = False
    ) -> None:
        """plan: the first one, which dealt the rows. seed: the run's.

        local: whether the folder holds this lane's samples alone, which no store has verified. TryAgain: they are
        damaged.
        """
        if local:
            check_files(folder)
        self._data = PreparedData(folder)
        self._plan, self._lane = plan, lane
        count = self._data.size("train")
        self._rows = np.arange(count) if local else lane_rows(plan, lane, count, seed)
        self._seed, self._local = seed, local
        self._copies = DeviceCopies(device)
        self._indices = np.empty(0, dtype=np.int64)
        self._targets = 0

    @property
    def task(self) -> str:
        """The task that the data were prepared for."""
        return self._data.task

    def start_step(self, step: int, with_targets: bool) -> None:
        """Draw the batch of the lane's step; count its targets if this device computes the loss."""
        self._indices = lane_batch(self._plan, self._lane, self._rows, self._seed, step, self._local)
        if with_targets:
            self._targets = count_targets(self._data.rows("train", self._indices, (LABELS,))[LABELS], self.task)

    @property
    def targets(self) -> int:
        """The number of targets in the whole batch."""
        return self._targets

    def inputs(
        self, micro_batch: int, span: tuple[int, int], names: Collection[str] | None = None
    ) -> dict[str, torch.Tensor]:
        """Return inputs by name, each of shape [samples of the span, ...]. names: those that are read; None: all."""
        rows = self._data.rows("train", self._span(micro_batch, span), names)
        return {name: self._copies.to_device(torch.from_numpy(a)) for name, a in rows.items() if name != LABELS}

    def labels(self, micro_batch: int, span: tuple[int, int]) -> torch.Tensor:
        """Return the labels of the span."""
        rows = self._data.rows("train", self._span(micro_batch, span), (LABELS,))
        return self._copies.to_device(torch.from_numpy(rows[LABELS]))

    def _span(self, micro_batch: int, span: tuple[int, int]) -> np.ndarray:
        start = micro_batch * self._plan.micro_batch_samples
        return self._indices[start + span[0] : start + span[1]]
