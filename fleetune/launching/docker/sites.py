"""Devices as containers: networks, anchors and limits are set up together and removed together."""

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Self

from fleetune.contracts.fleet import Engine
from fleetune.errors import Refused, TryAgain
from fleetune.launching.docker.anchor import PORT, Anchor
from fleetune.launching.docker.engines import EngineFacts
from fleetune.launching.docker.housing import Carried, Housing, Limits, Yard
from fleetune.launching.docker.tenancy import Tenancy
from fleetune.launching.docker.trouble import SILENT, why
from fleetune.launching.job import Launcher
from fleetune.launching.process import ProcessLauncher
from fleetune.launching.quarters import Grounds, Quarters
from fleetune.launching.sites import LOOPBACK, Door

AT_ONCE = 4


class DockerSites:
    """A fleet of which some devices, or all, are containers."""

    def __init__(self, grounds: Grounds, note: Callable[[str], None]) -> None:
        self._grounds, self._note = grounds, note
        self._tenancy: Tenancy | None = None
        self._anchors: dict[str, Anchor] = {}
        self._housings: dict[str, Housing] = {}
        self.listen = LOOPBACK

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._tenancy is not None:
            self._tenancy.close()

    def launcher(self, device: str) -> Launcher:
        """Containers for a device that is one, processes for another."""
        return self._housings.get(device) or ProcessLauncher(self._grounds.process_limits.get(device))

    def door(self, device: str) -> Door:
        """The device's own place on the network."""
        anchor = self._anchors.get(device)
        if anchor is None:
            return Door(bind=self.listen)
        links, others = self._grounds.links, (q.device for q in self._grounds.quarters if q.device != device)
        delays_s = {other: links.link(other, device).latency_s for other in others} if links else {}
        return Door(
            bind=f"tcp://0.0.0.0:{PORT}",
            address=anchor.address,
            delays_s={other: delay_s for other, delay_s in delays_s.items() if delay_s},
        )

    def _open(self) -> None:
        grounds = self._grounds
        engines = {each.engine: grounds.engine(each.engine) for each in grounds.contained}
        self._tenancy = tenancy = Tenancy(engines.values())
        yards = {name: tenancy.yard(name, engine, grounds.image, self._note) for name, engine in engines.items()}
        for each in grounds.contained:
            _within(each, tenancy.facts[each.engine])
        alone = len(yards) == 1 and all(yard.here for yard in yards.values())
        own = "" if alone else self._own_address()
        networks = {name: _network(yard, tenancy.token, internal=alone) for name, yard in yards.items()}
        carried = {name: Carried(yard) for name, yard in yards.items()}
        self.listen = f"tcp://{own or _gateway(*networks.values())}:*"

        def place(each: Quarters) -> None:
            yard, engine = yards[each.engine], engines[each.engine]
            reach = own if yard.here or engine is None else _address_of(engine)
            anchor = Anchor(yard, each.device, networks[each.engine], reach)
            self._anchors[each.device] = anchor
            limits = Limits(cores=each.cores, memory_bytes=each.memory_bytes, gpu=each.gpu)
            self._housings[each.device] = Housing(yard, anchor.mode, limits, carried[each.engine])

        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(place, grounds.contained))
            list(pool.map(self._shape, grounds.contained))

    def _shape(self, each: Quarters) -> None:
        links = self._grounds.links
        others = [other for other in self._anchors if other != each.device]
        if links is not None and others:
            rates = {self._anchors[other].ip: links.link(each.device, other).bytes_per_s for other in others}
            self._anchors[each.device].shape(rates)

    def _own_address(self) -> str:
        """This machine's address as engines elsewhere see it: that of the interface which leads to the first."""
        hosts = [engine.host for engine in self._grounds.engines if engine.host]
        for host in hosts:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
                probe.connect((host, 9))
                return str(probe.getsockname()[0])
        raise Refused("devices of several engines need an address where they find each other: give engines a reach")


def _network(yard: Yard, token: str, *, internal: bool) -> Any:
    """A network of this run's own; one of a single engine of this machine leads nowhere else."""
    try:
        network = yard.client.networks.create(
            f"fleetune-{token}-{yard.name}", driver="bridge", internal=internal, labels=dict(yard.labels)
        )
        network.reload()
    except SILENT as error:
        raise TryAgain(f"engine {yard.name} could not make a network ({why(error)})") from None
    return network


def _address_of(engine: Engine) -> str:
    """Where the other devices find an engine's machine: containers know no names but those of a name server."""
    try:
        return socket.gethostbyname(engine.host)
    except OSError as error:
        raise Refused(
            f"engine {engine.name}: {engine.host!r} is no address and cannot be looked up ({error.strerror}); "
            "give it a reach: the address at which the other devices find its machine"
        ) from None


def _gateway(network: Any) -> str:
    """This machine's address on a network of its own engine."""
    return str(network.attrs["IPAM"]["Config"][0]["Gateway"])


def _within(each: Quarters, facts: EngineFacts) -> None:
    """Refuse a quota above the machine."""
    for what, asked, has in (
        ("emulate.cores", each.cores, facts.cores),
        ("emulate.memory_bytes", each.memory_bytes, facts.memory_bytes),
    ):
        if asked is not None and asked > has:
            raise Refused(
                f"device {each.device}: {what} is {asked:.16g} but the machine of engine {each.engine} has "
                f"{has:.16g}; ask for at most that"
            )
