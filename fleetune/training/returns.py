"""Lost devices that are started again: which and when, sooner after a first loss than after the next ones.

With the first loss the profiled devices that the first plan leaves out are started too.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from fleetune.contracts.plan import Plan
from fleetune.launching import Command, Job, Launcher, describe_exit
from fleetune.recovery.protocol import Joined
from fleetune.recovery.state import RUNNING, State
from fleetune.training.device_watch import NotBack
from fleetune.training.roles import averages_after

FIRST_S, MAX_S = 2.0, 60.0
"""Seconds from a device's loss to the start of its next worker: the first, and the most."""
CALM_ROUNDS = 20
"""A device that was there for so many committed rounds is trusted as at the beginning."""
MAX_IN_A_ROW = 6
"""A device that was lost so often in a row, none of them after CALM_ROUNDS, is not started again."""
WAIT_S = 10.0
"""Longest time for which a plan with a collector waits for a lost device, before its blocks go to the others."""


class Returns:
    """The lost devices of one training; the clock is an argument."""

    def __init__(self, now_s: Callable[[], float], rounds: int, spares: Collection[str] = ()) -> None:
        """rounds: of the whole training. spares: devices that the first plan leaves out."""
        self._now_s, self._rounds, self._spares = now_s, rounds, tuple(spares)
        self._arrived: list[str] = []
        """Devices that wait for an average of the lanes."""
        self._loading = set[str]()
        self._due_s: dict[str, float] = {}
        self._started = set[str]()
        self._in_a_row: dict[str, int] = {}
        self._since_round: dict[str, int] = {}

    def lost(self, device: str, rounds: int) -> None:
        """Plan the return of a device that was lost after so many committed rounds."""
        if device in self._since_round and rounds - self._since_round.pop(device) >= CALM_ROUNDS:
            self._in_a_row.pop(device, None)
        self._started.discard(device)
        count = self._in_a_row[device] = self._in_a_row.get(device, 0) + 1
        if count <= MAX_IN_A_ROW:
            self._due_s[device] = self._now_s() + min(MAX_S, FIRST_S * 2 ** (count - 1))

    def left(self, device: str, rounds: int, *, will: bool) -> bool:
        """Take in that a device is lost after so many committed rounds, and plan its return, if it will; return whether
        it only waited or loaded until now."""
        if will:
            self.lost(device, rounds)
        self.call_spares()
        return self.forget(device)

    def call_spares(self) -> None:
        """Have the spares started, now that a device is lost; they are called once."""
        self._due_s.update(dict.fromkeys(self._spares, self._now_s()))
        self._spares = ()

    def take_due(self) -> tuple[str, ...]:
        """Return the devices that are to be started now, each once."""
        now_s = self._now_s()
        due = tuple(device for device, at_s in self._due_s.items() if at_s <= now_s)
        for device in due:
            del self._due_s[device]
        self._started.update(due)
        return due

    def loads(self, device: str) -> None:
        """Note that a device has said hello, and loads its part of the first plan while the others train on."""
        self._loading.add(device)

    def arrive(self, device: str, state: State, plan: Plan) -> tuple[Joined, ...]:
        """Note that a device may take part; return what the conductor is told of now, once for each of its starts.

        Where lanes are averaged, it waits until they are alike: only then a lane that begins again has a state.
        """
        if device not in self._loading:  # it was let in while all waited for it
            return ()
        self._since_round[device] = state.history.rounds
        self._started.discard(device)
        self._loading.discard(device)
        if not plan.average_every_rounds:
            return (Joined(device=device),)
        self._arrived.append(device)
        return ()

    def take_averaged(self, device: str, state: State, plan: Plan) -> tuple[Joined, ...]:
        """Return the devices that join now, as the last of the others tells that its lanes are averaged.

        device: has prepared the round that follows `state.history`.
        """
        done = state.history.rounds
        alike = done > 0 and averages_after(plan, done - 1, self._rounds)
        if not (self._arrived and alike and state.phase == RUNNING and state.answered | {device} >= set(plan.devices)):
            return ()
        arrived, self._arrived = self._arrived, []
        return tuple(Joined(device=each, at_once=each == arrived[-1]) for each in arrived)

    def forget(self, device: str) -> bool:
        """Return whether a device waited or loaded, which is lost again."""
        waited = device in self._arrived or device in self._loading
        self._loading.discard(device)
        self._arrived = [each for each in self._arrived if each != device]
        return waited

    def worth_waiting(self, first: Plan, devices: Collection[str], since_s: float) -> bool:
        """Return whether to wait for a device of the first plan: with a collector, nothing else is lost with it."""
        away = [device for device in first.devices if device not in devices]
        return bool(first.collector) and self._now_s() - since_s < WAIT_S and self.expects(away)

    def expects(self, devices: Collection[str]) -> bool:
        """Return whether one of these devices is being started, or is to be within WAIT_S."""
        soon = {device for device, at_s in self._due_s.items() if at_s <= self._now_s() + WAIT_S}
        return bool((soon | self._started) & set(devices))


class Returning:
    """Workers that are started again and have not said hello yet; starting one may take seconds."""

    def __init__(self) -> None:
        self._started: dict[str, Future[Job]] = {}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="start-again")

    def __contains__(self, device: str) -> bool:
        return device in self._started

    def start(self, device: str, launcher: Launcher, command: Command) -> None:
        """Start a device's worker, without waiting for it."""
        self._started[device] = self._pool.submit(launcher.start, command)

    def take(self, device: str) -> Job:
        """Return the worker that has said hello."""
        return self._started.pop(device).result()

    def take_failed(self) -> Iterator[NotBack]:
        """Yield the devices that could not be started, or whose worker has ended, each once."""
        for device, started in list(self._started.items()):
            if started.done() and (why := _why_not_back(started)):
                del self._started[device]
                yield NotBack(device, why)

    def take_all(self) -> list[Job]:
        """Return all that were started; what has not begun to start is not started any more."""
        started = [each for each in self._started.values() if not each.cancel()]
        self._started.clear()
        return [each.result() for each in started if each.exception() is None]

    def close(self) -> None:
        """End the thread that started workers; only once these have ended, as they end with it."""
        self._pool.shutdown()


def _why_not_back(started: Future[Job]) -> str:
    """Return why a worker that was started again does not come; '' while it may."""
    error = started.exception()
    if error is not None:
        return f"could not be started again: {error}"
    code = started.result().poll()
    return "" if code is None else f"was started again and {describe_exit(code)}"


def first_outsider(names: Iterable[str], living: Collection[str], members: Collection[str]) -> str | None:
    """Return the first of these that has come back and that no attempt knows yet: no round fails with it."""
    return next((name for name in names if name in living and name not in members), None)
