"""The plain-Python event simulation alone: tasks, transfers and ports by numbers, drawn by hand."""

import pytest

from fleetune.clock.event_simulation import Task, TaskGraph, Trace, Transfer, simulate_graph


def transfer(egress: int, ingress: int, holds: int, feeds: tuple[int, ...] = (), *, latency: int = 0) -> Transfer:
    """Ranked by its ports."""
    return Transfer(egress, ingress, holds, latency, (egress, ingress), feeds)


def alone(*transfers: Transfer) -> Trace:
    """Transfers that all may start at 0, and nobody who works."""
    return simulate_graph(TaskGraph(tasks=(), transfers=transfers, orders=(), ready=tuple(range(len(transfers)))))


def test_a_device_does_one_task_after_the_other_in_its_order() -> None:
    """Orders say who does what when; two devices work beside each other."""
    tasks = (Task(2, 0, ()), Task(3, 0, ()), Task(4, 0, ()))
    trace = simulate_graph(TaskGraph(tasks=tasks, transfers=(), orders=((1, 0), (2,))))
    assert trace.tasks == {1: (0, 3), 0: (3, 5), 2: (0, 4)}
    assert (trace.end_ns, trace.deadlocked) == (5, {})


def test_one_transfer_may_let_several_tasks_start() -> None:
    """What a device is given once serves all that awaits it, here the same device's two tasks and another's one."""
    tasks = (Task(1, 1, ()), Task(1, 1, ()), Task(5, 1, ()))
    sent = Transfer(0, 1, 3, 2, (0,), (0, 1, 2))
    trace = simulate_graph(TaskGraph(tasks=tasks, transfers=(sent,), orders=((0, 1), (2,)), ready=(0,)))
    assert trace.transfers == {0: (0, 3)}
    assert trace.tasks == {0: (5, 6), 1: (6, 7), 2: (5, 10)}


def test_a_task_awaits_all_its_transfers() -> None:
    """Two arrive at 1 and 4; the task starts at 4."""
    both = (transfer(0, 9, 1, (0,)), transfer(1, 8, 4, (0,)))
    trace = simulate_graph(TaskGraph(tasks=(Task(1, 2, ()),), transfers=both, orders=((0,),), ready=(0, 1)))
    assert trace.tasks == {0: (4, 5)}


def test_a_port_carries_one_transfer_at_a_time() -> None:
    """Sender 0's second waits for its first, as does receiver 1's; what shares no port goes beside them."""
    trace = alone(transfer(0, 1, 3), transfer(0, 2, 1), transfer(5, 1, 2), transfer(5, 6, 1))
    assert trace.transfers == {0: (0, 3), 1: (3, 4), 2: (3, 5), 3: (0, 1)}


def test_a_device_sends_and_receives_at_once() -> None:
    """Egress and ingress of the same number are two ports."""
    assert alone(transfer(0, 1, 3), transfer(1, 0, 3)).transfers == {0: (0, 3), 1: (0, 3)}


def test_what_became_ready_first_goes_first_and_equals_go_by_rank() -> None:
    """Two tasks end at 1 and 2 and want the same ingress; then two that end together, the later number ranked first."""
    tasks = (Task(2, 0, (0,)), Task(1, 0, (1,)), Task(2, 0, (2,)))
    late, early, first = (Transfer(k, 9, 5, 0, (rank,), ()) for k, rank in enumerate((1, 2, 0)))
    trace = simulate_graph(TaskGraph(tasks=tasks, transfers=(late, early, first), orders=((0,), (1,), (2,))))
    assert trace.transfers == {1: (1, 6), 2: (6, 11), 0: (11, 16)}


def test_what_takes_no_time_passes_through_one_instant() -> None:
    """A chain of empty tasks and transfers ends at the instant at which it began."""
    tasks = (Task(0, 0, (0,)), Task(0, 1, (1,)), Task(0, 1, ()))
    sent = (transfer(0, 1, 0, (1,)), transfer(1, 0, 0, (2,)))
    trace = simulate_graph(TaskGraph(tasks=tasks, transfers=sent, orders=((0, 2), (1,))))
    assert trace.end_ns == 0 and set(trace.tasks) == {0, 1, 2}


def test_the_end_is_when_the_last_transfer_arrived() -> None:
    """Also when nobody awaits it."""
    trace = simulate_graph(
        TaskGraph(tasks=(Task(1, 0, (0,)),), transfers=(transfer(0, 1, 2, latency=7),), orders=((0,),))
    )
    assert trace.end_ns == 10


@pytest.mark.parametrize(
    ("orders", "waiting"),
    [(((0, 1), (2,)), {}), (((1, 0), (2,)), {0: 0, 1: 0}), (((0, 1), ()), {0: 1})],
)
def test_who_waits_for_ever_is_told_with_the_position(
    orders: tuple[tuple[int, ...], ...], waiting: dict[int, int]
) -> None:
    """Task 1 awaits what task 2 sends, which awaits what task 0 sends."""
    tasks = (Task(1, 0, (0,)), Task(1, 1, ()), Task(1, 1, (1,)))
    sent = (transfer(0, 1, 1, (2,)), transfer(1, 0, 1, (1,)))
    assert simulate_graph(TaskGraph(tasks=tasks, transfers=sent, orders=orders)).deadlocked == waiting
