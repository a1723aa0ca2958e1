"""Where devices' commands run, whatever a device is: a process here, a container here, a container elsewhere."""

from collections.abc import Mapping
from dataclasses import field
from typing import Protocol, Self

from fleetune.contracts.record import record
from fleetune.launching.job import Launcher
from fleetune.launching.process import ProcessLauncher

LOOPBACK = "tcp://127.0.0.1:*"


@record
class Door:
    """How what runs at a site is reached on the links of a run."""

    bind: str = LOOPBACK
    """Where it listens."""
    address: str = ""
    """What others connect to; empty: whatever `bind` came to."""
    delays_s: Mapping[str, float] = field(default_factory=dict)
    """sender -> seconds that what comes from it is held back: the latency of an emulated link."""


class Sites(Protocol):
    """All devices of a fleet, as places to run commands; what had to be set up for them is gone on exit."""

    @property
    def listen(self) -> str:
        """Where this process must listen for its devices to reach it."""

    def launcher(self, device: str) -> Launcher:
        """What starts commands at a device."""

    def door(self, device: str) -> Door:
        """How what runs at a device is reached."""

    def __enter__(self) -> Self:
        """Set up what devices need; TryAgain or Refused, with nothing left, where that fails."""

    def __exit__(self, *_: object) -> None:
        """End and remove it all."""


class Here:
    """Every device is processes of this machine."""

    def __init__(self, launcher: Launcher | None = None, limits: Mapping[str, int] | None = None) -> None:
        """`limits`: device -> bytes that a process of it may use."""
        self._launcher = launcher
        self._limits = limits or {}
        self.listen = LOOPBACK

    def launcher(self, device: str) -> Launcher:
        """The one that was given, else processes within the device's memory."""
        return self._launcher or ProcessLauncher(self._limits.get(device))

    def door(self, device: str) -> Door:
        """Loopback, any port."""
        return Door()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return
