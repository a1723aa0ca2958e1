"""Fleets of containers for tests, and commands that run a few lines of Python in them."""

from collections.abc import Callable
from pathlib import Path

from fleetune.launching import Command
from fleetune.launching.quarters import Grounds, Quarters

IMAGE = "fleetune-mounted"


def contained(device: str, **limits: float) -> Quarters:
    """A device that is a container of this machine's engine."""
    return Quarters(device=device, launcher="docker", engine="local", **limits)  # type: ignore[arg-type]


def grounds(*quarters: Quarters, image: str = IMAGE) -> Grounds:
    """A fleet of them."""
    return Grounds(quarters=quarters, image=image)


def python(source: str, folder: Path, **more: object) -> Command:
    """A command that runs some lines of Python: timeit's set-up, run once; its own answer is one more line."""
    return Command(module="timeit", arguments=("-n1", "-r1", "-s", source), log=folder / "log", **more)  # type: ignore[arg-type]


def ignored(_: str) -> None:
    """Hears a note and forgets it."""


Note = Callable[[str], None]
