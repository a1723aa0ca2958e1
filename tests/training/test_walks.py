"""How far a reader walks who follows a round, and a recovery: traced, since no text tells which files they enter.

Whoever shortens a walk lowers its number here. The aim is 25 files in each process for a round, and 45 for a recovery.
"""

import pytest

from benchmarks.weight.walks import Walks, training_walks


@pytest.fixture(scope="module")
def walks(tmp_path_factory: pytest.TempPathFactory) -> Walks:
    """What the processes of a small training enter."""
    return training_walks(tmp_path_factory.mktemp("walks"))


def test_a_round_enters_few_files(walks: Walks) -> None:
    """The files that a committed round enters in a worker, in the coordinator, and in both: one more must not come."""
    assert len(walks.worker.files) <= 41, sorted(walks.worker.files)  # aim: 25
    # 33 and 59, and two of a timer where rounds are slow
    assert len(walks.coordinator.files) <= 35, sorted(walks.coordinator.files)  # aim: 25
    assert len(walks.round.files) <= 61, sorted(walks.round.files)


def test_a_round_is_few_functions(walks: Walks) -> None:
    """The functions that it enters in a worker, and in both. How often a call leads from one file to another, which
    depends on the beats of a slow machine, is told by `python -m benchmarks.weight` alone."""
    assert len(walks.worker.functions) <= 192, sorted(walks.worker.functions)
    assert len(walks.round.functions) <= 290, sorted(walks.round.functions)


def test_a_recovery_enters_few_files(walks: Walks) -> None:
    """The files that the coordinator and the workers that are left enter between the last commit before a device is
    killed and the first one after it, in which they plan anew, go back to a backup, and run a round."""
    # 116, and four of timers, of a device that is asked whether it lives, and of imports
    assert len(walks.recovery.files) <= 120, sorted(walks.recovery.files)  # aim: 45
