"""Fleets of containers for tests, and commands that run a few lines of Python in them."""

from collections.abc import Callable
from pathlib import Path

from fleetune.launching import Command
from fleetune.launching.placement import DevicePlacement, FleetPlacement

IMAGE = "fleetune-mounted"


def contained(device: str, **limits: float) -> DevicePlacement:
    """A device that is a container of this machine's engine."""
    return DevicePlacement(device=device, launcher="docker", engine="local", **limits)  # type: ignore[arg-type]


def grounds(*devices: DevicePlacement, image: str = IMAGE) -> FleetPlacement:
    """A fleet of them."""
    return FleetPlacement(devices=devices, image=image)


def python(source: str, folder: Path, **more: object) -> Command:
    """A command that runs some lines of Python: timeit's set-up, run once; its own answer is one more line."""
    return Command(module="timeit", arguments=("-n1", "-r1", "-s", source), log=folder / "log", **more)  # type: ignore[arg-type]


def ignored(_: str) -> None:
    """Hears a note and forgets it."""


Note = Callable[[str], None]
