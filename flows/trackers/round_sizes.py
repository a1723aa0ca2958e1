"""Samples and tokens of a round, for rates."""

from collections.abc import Collection
from pathlib import Path

import numpy as np

from fleetune.contracts.input_spec import IGNORE_INDEX
from fleetune.contracts.plan import Plan
from fleetune.data.prepared_data import DECODER_IDS, LABELS, MASK, POSITIONS, PreparedData, batch_indices


class RoundSizes:
    """Numbers of samples and of real tokens (padding does not count) of each round of a training."""

    def __init__(self, plan: Plan, data_folder: Path, seed: int) -> None:
        """data_folder: the `data` artifact. seed: the run's."""
        self._of_lane = {lane.name: plan.micro_batch_samples * plan.micro_batches_of(lane) for lane in plan.lanes}
        self._lanes = len(plan.lanes)
        data = PreparedData(data_folder)
        drawn = self._lanes == 1 and data.info.local is None  # several lanes, and owners, draw rows of their own
        self._data = data if drawn else None
        self._seed = seed

    def samples(self, resting: Collection[str] = ()) -> int:
        """Return the samples of a round in which these lanes rest."""
        return sum(size for lane, size in self._of_lane.items() if lane not in resting)

    def known(self, round: int, resumed_from: int | None) -> bool:
        """Return whether the plan that is given trained all samples of a round; with its device a lane may be lost.

        resumed_from: the first round after a recovery; None without one.
        """
        return self._lanes == 1 or resumed_from is None or round < resumed_from

    def tokens(self, round: int) -> int | None:
        """Return the real tokens of a round; None for images, and where lanes own samples."""
        if self._data is None:
            return None
        drawn = batch_indices(self._data.size("train"), self.samples(), self._seed, round)
        rows = self._data.rows("train", drawn, (MASK, POSITIONS, DECODER_IDS, LABELS))
        if POSITIONS in rows:
            return _packed_tokens(rows[POSITIONS])
        written = int((rows[LABELS] != IGNORE_INDEX).sum()) if DECODER_IDS in rows else 0
        return int(rows[MASK].sum()) + written if MASK in rows else None


def _packed_tokens(positions: np.ndarray) -> int:
    """Return the tokens of all samples in packed rows [rows, length]; each token of padding has position 0."""
    follows = positions[:, 1:] == positions[:, :-1] + 1
    none = np.zeros((len(positions), 1), dtype=bool)
    return int((np.hstack([follows, none]) | np.hstack([none, follows])).sum())
