"""Signals that end a run, held back while pydantic works.

pydantic wraps what a callback raises in an error of its own, KeyboardInterrupt too, and who catches that error takes it
for a failed request: the Ctrl-C was lost, and the run went on to its end.

Prefect has a handler of SIGTERM of its own while a flow runs. The process of a flow run tells its worker that it knows
of a cancellation, and that its end is no crash, only where that very handler is set.
"""

import importlib
import signal
import threading
from types import FrameType
from typing import Any

RETRY_AFTER_S = 0.01


class Deferred:
    """A signal handler that calls another one as soon as no function of pydantic runs in the main thread.

    once: it calls it for the first signal, and ignores all others.
    """

    def __init__(self, handler: Any, once: bool = False) -> None:
        self._handler, self._once, self._called = handler, once, False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Call the handler, now or in RETRY_AFTER_S."""
        if self._once and self._called:
            return
        if _in_pydantic(frame):
            signal.signal(signal.SIGALRM, lambda _, later: self(number, later))
            signal.setitimer(signal.ITIMER_REAL, RETRY_AFTER_S)
        else:
            self._called = True
            self._handler(number, frame)


def end_on_sigterm() -> None:
    """Have SIGTERM end a command as Ctrl-C does, both deferred."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    defer_interrupts()


def defer_interrupts() -> None:
    """Defer the present handlers of SIGINT and SIGTERM; in the main thread, others can set none."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGINT, signal.SIGTERM):
        handler = signal.getsignal(number)
        if callable(handler) and not isinstance(handler, Deferred):
            signal.signal(number, Deferred(handler))


def defer_interrupts_of_flows(once: bool = False) -> None:
    """`defer_interrupts`, now and while a flow runs: Prefect takes its deferred handler of SIGTERM for its own.

    once: only the first SIGTERM ends a flow, of a process that runs no other one.
    """
    engine: Any = importlib.import_module("prefect.utilities.engine")
    with engine._prefect_sigterm_bridge_lock:
        own = engine._prefect_sigterm_handler
        is_set, in_main = signal.getsignal(signal.SIGTERM) is own, threading.current_thread() is threading.main_thread()
        if not isinstance(own, Deferred) and (in_main or not is_set):
            engine._prefect_sigterm_handler = deferred = Deferred(own, once)
            if is_set:
                signal.signal(signal.SIGTERM, deferred)
    defer_interrupts()


def _in_pydantic(frame: FrameType | None) -> bool:
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith("pydantic"):
            return True
        frame = frame.f_back
    return False
