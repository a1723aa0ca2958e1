"""What a schedule costs and whether it keeps to the contract, by hand."""

import pytest

from fleetune.solving.split.instance import Instance
from fleetune.solving.split.problem import Problem
from fleetune.solving.split.schedule import BACKWARD, FORWARD, Row, completion, makespan, merged, verify


def made(*, preemptive: bool = True, switch: int = 0) -> Instance:
    """Two clients of forward 2, backward 3, between 1 + 1, tail 4; client 1 is released at 5 on helper 0 of two."""
    problem = Problem(
        release=((0, 5), (0, None)),
        forward=((2, 2), (2, 2)),
        turnaround_forward=((1, 1), (1, 1)),
        turnaround_backward=((1, 1), (1, 1)),
        backward=((3, 3), (3, 3)),
        tail=((4, 4), (4, 4)),
        helper_memory=(2, 1),
        client_memory=(1, 1),
        preemptive=preemptive,
        switch_cost=(switch, 0),
    )
    return Instance.from_problem(problem)


WHOLE = [Row(0, FORWARD, 0, 2), Row(0, BACKWARD, 4, 7), Row(1, FORWARD, 7, 9), Row(1, BACKWARD, 11, 14)]
PIECES = [
    Row(0, FORWARD, 0, 2), Row(0, BACKWARD, 4, 5), Row(1, FORWARD, 5, 7), Row(0, BACKWARD, 7, 9),
    Row(1, BACKWARD, 9, 12),
]  # fmt: skip


def test_completion_by_hand() -> None:
    """End of the last backward + tail; every start and resume adds the helper's switch cost."""
    assert completion(made(), [0, 0], WHOLE) == [11, 18]
    assert completion(made(), [0, 0], PIECES) == [13, 16]
    assert completion(made(switch=10), [0, 0], WHOLE) == [31, 38]
    assert completion(made(switch=10), [0, 0], PIECES) == [43, 36]
    assert makespan(made(switch=10), [0, 0], PIECES) == 43


def test_pieces_that_abut_are_one() -> None:
    """Nothing is switched between them, in whatever order they are given; other tasks and gaps keep them apart."""
    cut = [Row(0, BACKWARD, 5, 7), Row(0, FORWARD, 0, 2), Row(0, BACKWARD, 4, 5), *WHOLE[2:]]
    assert merged(cut) == sorted(WHOLE)
    assert merged(PIECES) == sorted(PIECES)
    assert completion(made(switch=10), [0, 0], cut) == [31, 38]
    assert merged([Row(0, FORWARD, 0, 2), Row(0, BACKWARD, 2, 3)]) == [Row(0, FORWARD, 0, 2), Row(0, BACKWARD, 2, 3)]


def test_what_keeps_to_the_contract() -> None:
    """Both schedules by hand do."""
    verify(made(), [0, 0], WHOLE)
    verify(made(preemptive=False), [0, 0], WHOLE)
    verify(made(), [0, 0], PIECES)
    verify(made(), [0, 0], merged(PIECES))


@pytest.mark.parametrize(
    ("helper", "rows", "said"),
    [
        ([0], WHOLE, "1 helpers are named for 2 clients"),
        ([0, 2], WHOLE, "client 1 is on helper 2, which does not exist"),
        ([0, -1], WHOLE, "client 1 is on helper -1"),
        ([0, 1], WHOLE, "client 1 has no link to helper 1"),
        ([0, 0], WHOLE[:3], "backward of client 1 lasts 0, not 3"),
        ([0, 0], [*WHOLE, Row(2, FORWARD, 20, 21)], "is no client's task"),
        ([0, 0], [*WHOLE, Row(1, BACKWARD, 14, 14)], "takes no time"),
        ([0, 0], [*WHOLE[:3], Row(1, BACKWARD, 11, 15)], "backward of client 1 lasts 4, not 3"),
        ([0, 0], [*WHOLE[:3], Row(1, BACKWARD, 10, 13)], "backward of client 1 starts before its gradients are there"),
        ([0, 0], [*WHOLE[:2], Row(1, FORWARD, 6, 8), WHOLE[3]], "helper 0 runs"),
        ([0, 0], [Row(0, FORWARD, 0, 2), Row(0, BACKWARD, 9, 12), Row(1, FORWARD, 4, 6), Row(1, BACKWARD, 12, 15)],
         "forward of client 1 starts before its release at 5"),
    ],
)  # fmt: skip
def test_what_breaks_it(helper: list[int], rows: list[Row], said: str) -> None:
    """Each breach is told in words."""
    with pytest.raises(AssertionError, match=said):
        verify(made(), helper, rows)


def test_interruptions_need_leave() -> None:
    """A problem that is not preemptive has tasks in one piece."""
    with pytest.raises(AssertionError, match="backward of client 0 is interrupted"):
        verify(made(preemptive=False), [0, 0], PIECES)


def test_memory() -> None:
    """Clients that fit one by one may not fit together."""
    instance = made()._replace(helper_memory=made().helper_memory - 1)
    with pytest.raises(AssertionError, match="helper 0 lacks memory"):
        verify(instance, [0, 0], WHOLE)
