"""Infeasible problems name the blocks, devices and bytes that bind."""

import itertools
from random import Random

import pytest

from fleetune.errors import Infeasible
from fleetune.solving.lola_deft.methods import SUMMARIES
from fleetune.solving.lola_deft.problem import Problem
from fleetune.solving.lola_deft.solve import solve
from tests.support.solving.lola_deft.instances import problem


def shaped(memory: list[float], needs: list[float]) -> Problem:
    """Return a problem with these memories and needs."""
    return problem(
        compute_s=tuple((1.0,) * len(needs) for _ in memory),
        memory_bytes=tuple(memory),
        block_memory_bytes=tuple(needs),
        spectral_efficiency=(1.0,) * len(memory),
    )


GIVE = "give a device more memory, add one, or make smaller blocks"


@pytest.mark.parametrize(
    ("memory", "needs", "said"),
    [
        (
            [5.0],
            [1.0, 1.0],
            "1 device for 2 blocks: each block needs a device of its own, and block 1 would have none; add devices or "
            "make larger blocks, fewer of them",
        ),
        (
            [6000, 4000, 5000],
            [1000, 7000],
            f"block 1 needs 7000 bytes, and no device has that much; device 0 comes next with 6000 bytes and lacks "
            f"1000 bytes: {GIVE}",
        ),
        (
            [1e9, 4e9, 6e9, 4e9],
            [1e9, 5e9, 6e9],
            f"blocks 1, 2 need at least 5000000000 bytes each, and only device 2 has that much; device 1 comes next "
            f"with 4000000000 bytes and lacks 1000000000 bytes: {GIVE}",
        ),
        (
            [3, 3, 1, 0.5],
            [2, 3, 2.5],
            f"blocks 0, 1, 2 need at least 2 bytes each, and only devices 0, 1 have that much; device 2 comes next "
            f"with 1 byte and lacks 1 byte: {GIVE}",
        ),
    ],
)
@pytest.mark.parametrize("method", SUMMARIES)
def test_it_names_what_binds(memory: list[float], needs: list[float], said: str, method: str) -> None:
    """The message names the fewest blocks that lack a device, who could hold them, and the bytes the next device
    lacks."""
    with pytest.raises(Infeasible) as caught:
        solve(shaped(memory, needs), method=method)
    assert str(caught.value) == said


def test_a_budget_met_exactly_fits() -> None:
    """Memory equal to the need is enough."""
    assert solve(shaped([2.0, 1.0], [1.0, 2.0])).devices == (1, 0)


def test_long_lists_are_cut() -> None:
    """Long lists of blocks and devices are cut."""
    with pytest.raises(Infeasible) as caught:
        solve(shaped([2.0] * 29 + [1.0], [2.0] * 30))
    assert "blocks 0, 1, 2, 3, 4, 5, 6, 7 and 22 more need at least 2 bytes each" in str(caught.value)
    assert "only devices 0, 1, 2, 3, 4, 5, 6, 7 and 21 more have that much; device 29 comes next" in str(caught.value)


def test_infeasible_just_when_no_injection_fits() -> None:
    """Over random memories, a plan exists exactly where brute force finds an allocation."""
    random, seen = Random(7), set()
    for _ in range(150):
        memory = [float(random.randint(0, 4)) for _ in range(random.randint(1, 5))]
        needs = [float(random.randint(0, 4)) for _ in range(random.randint(1, 4))]
        able = any(
            all(need <= memory[d] for need, d in zip(needs, devices, strict=True))
            for devices in itertools.permutations(range(len(memory)), len(needs))
        )
        seen.add(able)
        if able:
            assert solve(shaped(memory, needs)).feasible
        else:
            with pytest.raises(Infeasible):
                solve(shaped(memory, needs))
    assert seen == {True, False}
