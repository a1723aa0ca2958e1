"""Placement of a fleet's devices on processes and engines, and `Sites`, which starts commands at its devices.

`fleetune.launching.factory` opens the sites of a placement.
"""

from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Protocol, Self

from fleetune.contracts.fleet import DOCKER, LOCAL, Engine, Fleet, NetworkSpec
from fleetune.contracts.fleet_request import FleetRequest
from fleetune.contracts.record import record
from fleetune.launching.job import Launcher
from fleetune.launching.process import ProcessLauncher

LOOPBACK = "tcp://127.0.0.1:*"


def gpu_device_files() -> list[Path]:
    """Device files of this machine's GPU drivers."""
    return [path for name in ("nvidia[0-9]*", "nvhost-gpu", "dxg") for path in Path("/dev").glob(name)]


@record
class DevicePlacement:
    """Launcher, engine and limits of one device; a limit that is None does not bind."""

    device: str
    launcher: str
    engine: str
    cores: float | None = None
    memory_bytes: int | None = None
    gpu: bool = False
    """True if the device may use the GPUs of its machine."""


@record
class FleetPlacement:
    """Placement of all devices of a fleet, with the engines, image and links that containers need."""

    devices: tuple[DevicePlacement, ...]
    engines: tuple[Engine, ...] = ()
    image: str
    links: NetworkSpec | None = None

    @classmethod
    def from_request(cls, request: FleetRequest) -> Self:
        """The placement that a fleet file asks for."""
        return cls(
            devices=tuple(
                DevicePlacement(
                    device=each.name,
                    launcher=each.launcher,
                    engine=each.engine,
                    cores=each.emulate.cores,
                    memory_bytes=each.emulate.memory_bytes,
                    gpu=each.accelerator != "cpu",
                )
                for each in request.devices
            ),
            engines=request.engines,
            image=request.image,
            links=request.links,
        )

    @classmethod
    def from_fleet(cls, fleet: Fleet) -> Self:
        """The placement of a discovered fleet: emulated devices and containers are limited to the memory that discovery
        gave them, and to their cores where these are emulated."""
        return cls(
            devices=tuple(
                DevicePlacement(
                    device=each.name,
                    launcher=each.launcher,
                    engine=each.engine,
                    cores=each.cores if each.emulated else None,
                    memory_bytes=each.memory_bytes
                    if each.accelerator == "cpu" and (each.emulated or each.launcher == DOCKER)
                    else None,
                    gpu=each.accelerator != "cpu",
                )
                for each in fleet.devices
            ),
            engines=fleet.engines,
            image=fleet.image,
            links=fleet.emulated_links,
        )

    @property
    def in_containers(self) -> tuple[DevicePlacement, ...]:
        """Devices whose commands run in containers."""
        return tuple(each for each in self.devices if each.launcher == DOCKER)

    @property
    def process_memory_bytes(self) -> dict[str, int]:
        """device -> memory limit of each of its processes, for emulated devices that are not containers.

        A device that may compute on a GPU of this machine has its memory there, and gets no limit.
        """
        gpus = bool(gpu_device_files())
        return {
            each.device: each.memory_bytes
            for each in self.devices
            if each.launcher != DOCKER and each.memory_bytes is not None and not (each.gpu and gpus)
        }

    def engine(self, name: str) -> Engine | None:
        """An engine by name; None for that of this machine."""
        return None if name == LOCAL else next(engine for engine in self.engines if engine.name == name)


@record
class ListenSettings:
    """Addresses and emulated latencies of a process that listens on the links of a run."""

    bind: str = LOOPBACK
    """Address to listen at."""
    address: str = ""
    """Address that others connect to; empty: the one that `bind` resolves to."""
    delays_s: Mapping[str, float] = field(default_factory=dict)
    """sender -> seconds that its messages are held back: the latency of an emulated link."""


class Sites(Protocol):
    """Launchers and network addresses of all devices of a fleet; leaving the context removes what was set up."""

    @property
    def listen(self) -> str:
        """Address where this process must listen for its devices to reach it."""

    def launcher(self, device: str) -> Launcher:
        """The launcher that starts commands at a device."""

    def listen_settings(self, device: str) -> ListenSettings:
        """Settings of the links of a process at a device."""

    def __enter__(self) -> Self:
        """Set up what devices need; TryAgain or Refused, with nothing left behind, where that fails."""

    def __exit__(self, *_: object) -> None:
        """End and remove everything."""


class LocalSites:
    """Sites of a fleet whose devices are all processes of this machine."""

    def __init__(self, launcher: Launcher | None = None, memory_bytes: Mapping[str, int] | None = None) -> None:
        """`launcher` replaces that of processes; `memory_bytes`: device -> memory limit of each of its processes."""
        self._launcher = launcher
        self._memory_bytes = memory_bytes or {}
        self.listen = LOOPBACK

    def launcher(self, device: str) -> Launcher:
        """The given launcher, else one of processes within the device's memory."""
        return self._launcher or ProcessLauncher(self._memory_bytes.get(device))

    def listen_settings(self, device: str) -> ListenSettings:
        """Any port of loopback."""
        return ListenSettings()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return


class ChangedSites:
    """Sites of a fleet whose launchers are changed, such as to let faults happen."""

    def __init__(self, sites: Sites, change: Callable[[Launcher], Launcher]) -> None:
        self._sites, self._change = sites, change
        self.listen = sites.listen

    def launcher(self, device: str) -> Launcher:
        """The changed launcher of a device."""
        return self._change(self._sites.launcher(device))

    def listen_settings(self, device: str) -> ListenSettings:
        """Settings of the links of a process at a device."""
        return self._sites.listen_settings(device)

    def __enter__(self) -> Self:
        self._sites.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._sites.__exit__(*error)
