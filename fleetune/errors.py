"""The errors of this project; the exit code tells the caller whether a retry can help.

    FleetuneError
    ├── Refused      64  the input is malformed: the same input will be refused again
    ├── Infeasible   65  the input is valid, but nothing satisfies it; the message names the binding constraint
    └── TryAgain     75  a device, a link or the machine failed: the same call may succeed later

Messages are one sentence that says what was given, what is allowed and what to do next.
"""

from typing import ClassVar

__all__ = ["STOPPED", "FleetuneError", "Infeasible", "Refused", "TryAgain", "by_exit_code", "first_line"]


STOPPED = 128 + 2
"""Exit code of a command that SIGINT (Ctrl-C) has ended, as shells have it."""


class FleetuneError(Exception):
    """Base of every error shown to users; str() is the whole message."""

    exit_code: ClassVar[int] = 1


class Refused(FleetuneError, ValueError):
    """Malformed input or usage. A ValueError, so that pydantic reports it when a record raises it."""

    exit_code = 64


class Infeasible(FleetuneError):
    """Well-formed input that no plan, device or budget can satisfy."""

    exit_code = 65


class TryAgain(FleetuneError):
    """Something outside the input failed (a device left, a process was killed)."""

    exit_code = 75


def by_exit_code(code: int, message: str) -> FleetuneError:
    """Return the error that a process's exit code stands for; unknown codes become TryAgain."""
    kinds = {kind.exit_code: kind for kind in (Refused, Infeasible)}
    return kinds.get(code, TryAgain)(message)


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, at most 200 characters, for use inside another message."""
    return str(error).strip().split("\n", 1)[0][:200]
