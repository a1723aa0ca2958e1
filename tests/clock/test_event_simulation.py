"""The plain-Python event simulation on small task graphs, checked by hand."""

import pytest

from fleetune.clock.event_simulation import Task, TaskGraph, Trace, Transfer, TransferEnd, simulate_graph


def transfer(egress: int, ingress: int, holds: int, feeds: tuple[int, ...] = (), *, latency: int = 0) -> Transfer:
    """A transfer ranked by its ports."""
    return Transfer(egress, ingress, holds, latency, (egress, ingress), feeds)


def alone(*transfers: Transfer) -> Trace:
    """Simulate transfers that are ready at 0, without tasks."""
    return simulate_graph(TaskGraph(tasks=(), transfers=transfers, orders=(), ready=tuple(range(len(transfers)))))


def test_a_device_runs_one_task_at_a_time_in_order() -> None:
    """A device runs its tasks in order, one at a time; two devices run in parallel."""
    tasks = (Task(2, 0, ()), Task(3, 0, ()), Task(4, 0, ()))
    trace = simulate_graph(TaskGraph(tasks=tasks, transfers=(), orders=((1, 0), (2,))))
    assert trace.tasks == {1: (0, 3), 0: (3, 5), 2: (0, 4)}
    assert (trace.end_ns, trace.deadlocked) == (5, {})


def test_one_transfer_may_let_several_tasks_start() -> None:
    """One transfer can start several tasks, on the same device and on others."""
    tasks = (Task(1, 1, ()), Task(1, 1, ()), Task(5, 1, ()))
    sent = Transfer(0, 1, 3, 2, (0,), (0, 1, 2))
    trace = simulate_graph(TaskGraph(tasks=tasks, transfers=(sent,), orders=((0, 1), (2,)), ready=(0,)))
    assert trace.transfers == {0: (0, 3)}
    assert trace.tasks == {0: (5, 6), 1: (6, 7), 2: (5, 10)}


def test_a_task_awaits_all_its_transfers() -> None:
    """A task starts when the last of its transfers has arrived."""
    both = (transfer(0, 9, 1, (0,)), transfer(1, 8, 4, (0,)))
    trace = simulate_graph(TaskGraph(tasks=(Task(1, 2, ()),), transfers=both, orders=((0,),), ready=(0, 1)))
    assert trace.tasks == {0: (4, 5)}


def test_a_port_carries_one_transfer_at_a_time() -> None:
    """Transfers that share a port run in sequence, others in parallel."""
    trace = alone(transfer(0, 1, 3), transfer(0, 2, 1), transfer(5, 1, 2), transfer(5, 6, 1))
    assert trace.transfers == {0: (0, 3), 1: (3, 4), 2: (3, 5), 3: (0, 1)}


def test_a_transfer_arrives_later_where_an_end_computes() -> None:
    """Device 0 sends at 2, its ports are free at 5, and the receiver waits: 0 computes until 8 in one case, which takes
    4 ticks longer, and nothing in the other, 1 tick; the receiver's own tick comes on top of both."""
    ends = (TransferEnd(0, 1, 4), TransferEnd(1, 1, 9))
    sent = Transfer(0, 1, 3, 0, (0,), (2,), ends)
    for more, arrives in ((6, 5 + 4 + 1), (1, 5 + 1 + 1)):
        tasks = (Task(2, 0, (0,)), Task(more, 0, ()), Task(1, 1, ()))
        trace = simulate_graph(TaskGraph(tasks=tasks, transfers=(sent,), orders=((0, 1), (2,))))
        assert trace.transfers == {0: (2, 5)}
        assert trace.tasks[2] == (arrives, arrives + 1)


def test_a_device_sends_and_receives_at_once() -> None:
    """Egress and ingress of the same number are different ports."""
    assert alone(transfer(0, 1, 3), transfer(1, 0, 3)).transfers == {0: (0, 3), 1: (0, 3)}


def test_transfers_start_by_ready_time_then_rank() -> None:
    """Waiting transfers start in order of ready time, then of rank."""
    tasks = (Task(2, 0, (0,)), Task(1, 0, (1,)), Task(2, 0, (2,)))
    late, early, first = (Transfer(k, 9, 5, 0, (rank,), ()) for k, rank in enumerate((1, 2, 0)))
    trace = simulate_graph(TaskGraph(tasks=tasks, transfers=(late, early, first), orders=((0,), (1,), (2,))))
    assert trace.transfers == {1: (1, 6), 2: (6, 11), 0: (11, 16)}


def test_tasks_and_transfers_of_zero_duration_end_at_their_start() -> None:
    """A chain of tasks and transfers of zero duration ends at its start time."""
    tasks = (Task(0, 0, (0,)), Task(0, 1, (1,)), Task(0, 1, ()))
    sent = (transfer(0, 1, 0, (1,)), transfer(1, 0, 0, (2,)))
    trace = simulate_graph(TaskGraph(tasks=tasks, transfers=sent, orders=((0, 2), (1,))))
    assert trace.end_ns == 0 and set(trace.tasks) == {0, 1, 2}


def test_the_end_is_when_the_last_transfer_arrived() -> None:
    """The end includes transfers that no task waits for."""
    trace = simulate_graph(
        TaskGraph(tasks=(Task(1, 0, (0,)),), transfers=(transfer(0, 1, 2, latency=7),), orders=((0,),))
    )
    assert trace.end_ns == 10


@pytest.mark.parametrize(
    ("orders", "waiting"),
    [(((0, 1), (2,)), {}), (((1, 0), (2,)), {0: 0, 1: 0}), (((0, 1), ()), {0: 1})],
)
def test_a_deadlock_is_reported_with_its_positions(
    orders: tuple[tuple[int, ...], ...], waiting: dict[int, int]
) -> None:
    """A cyclic wait is reported with each device's position in its order."""
    tasks = (Task(1, 0, (0,)), Task(1, 1, ()), Task(1, 1, (1,)))
    sent = (transfer(0, 1, 1, (2,)), transfer(1, 0, 1, (1,)))
    assert simulate_graph(TaskGraph(tasks=tasks, transfers=sent, orders=orders)).deadlocked == waiting
