"""What decides where devices' commands run: their launchers, engines, limits and links, as asked or as found."""

from pathlib import Path

from fleetune.contracts.fleet import DOCKER, LOCAL, Engine, Fleet
from fleetune.contracts.fleet_request import FleetRequest
from fleetune.contracts.link_spec import NetworkSpec
from fleetune.contracts.record import record


def gpu_nodes() -> list[Path]:
    """Files of the drivers of this machine's GPUs."""
    return [path for name in ("nvidia[0-9]*", "nvhost-gpu", "dxg") for path in Path("/dev").glob(name)]


@record
class Quarters:
    """One device; limits that are None do not bind."""

    device: str
    launcher: str
    engine: str
    cores: float | None = None
    memory_bytes: int | None = None
    gpu: bool = False
    """Whether it may use the GPUs of its machine."""


@record
class Grounds:
    """All devices of a fleet."""

    quarters: tuple[Quarters, ...]
    engines: tuple[Engine, ...] = ()
    image: str
    links: NetworkSpec | None = None

    @property
    def contained(self) -> tuple[Quarters, ...]:
        """Those whose commands run in containers."""
        return tuple(each for each in self.quarters if each.launcher == DOCKER)

    @property
    def process_limits(self) -> dict[str, int]:
        """device -> bytes that each of its processes may use, of emulated devices that are not containers. A device
        that may compute on a GPU has its memory there."""
        gpus = bool(gpu_nodes())
        return {
            each.device: each.memory_bytes
            for each in self.quarters
            if each.launcher != DOCKER and each.memory_bytes is not None and not (each.gpu and gpus)
        }

    def engine(self, name: str) -> Engine | None:
        """An engine by name; None for that of this machine."""
        return None if name == LOCAL else next(engine for engine in self.engines if engine.name == name)


def asked(request: FleetRequest) -> Grounds:
    """As the fleet file asks."""
    return Grounds(
        quarters=tuple(
            Quarters(
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


def found(fleet: Fleet) -> Grounds:
    """As the fleet was found: with its memory divided among devices, and a quota where one was asked for."""
    return Grounds(
        quarters=tuple(
            Quarters(
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
