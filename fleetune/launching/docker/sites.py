"""Sites of devices in containers, with their networks, and launchers of whole stages in containers.

Each device has a pause container on a network of its engine. Its address is that of the device, and the device's
commands run in containers that share its network namespace.
"""

import json
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Self

from fleetune.contracts.fleet import LOCAL, Engine
from fleetune.errors import Refused, TryAgain
from fleetune.launching.docker.engine_client import ENGINE_ERRORS, EngineDescription, describe_error
from fleetune.launching.docker.launcher import ContainerLimits, DockerLauncher, FolderMounts
from fleetune.launching.docker.session import EngineContext, Session, start_with_input
from fleetune.launching.job import Launcher
from fleetune.launching.life_watch import USUAL, LifeWatch
from fleetune.launching.placement import LOOPBACK, DevicePlacement, FleetPlacement, ListenSettings
from fleetune.launching.process import ProcessLauncher

PORT = 7700
"""Port at which a device's command listens; a device runs one such command at a time."""
PAUSE_COMMAND = ["-PSEc", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"]
"""It ignores SIGTERM, which comes when the machine shuts down, so that workers on its network can write a checkpoint;
it is removed by force."""
PAUSE_MEMORY_BYTES = 64 << 20
SHAPING_TIMEOUT_S = 60


class PauseContainer:
    """A sleeping container that holds a device's network namespace; the device's commands join it."""

    def __init__(self, engine: EngineContext, device: str, network: Any, reach: str) -> None:
        """`reach`: the address at which its port is published; empty where its own address can be reached."""
        self._engine, self._device, self._reach = engine, device, reach
        ports = {f"{PORT}/tcp": None} if reach else {}  # on every interface, since reach may be that of a router
        try:
            self._container = engine.create_container(
                PAUSE_COMMAND,
                network=network.id,
                ports=ports,
                mem_limit=PAUSE_MEMORY_BYTES,
                environment={"FLEETUNE_DEVICE": device},
            )
            self._container.start()
            self._container.reload()
        except ENGINE_ERRORS as error:
            reason = f"engine {engine.name} could not connect it to the network ({describe_error(error)})"
            raise TryAgain(f"device {device}: {reason}") from None
        (attached,) = self._container.attrs["NetworkSettings"]["Networks"].values()
        self.ip = str(attached["IPAddress"])

    @property
    def network_mode(self) -> str:
        """Network mode of containers that share its namespace."""
        return f"container:{self._container.id}"

    @property
    def address(self) -> str:
        """Address that others connect to."""
        if not self._reach:
            return f"tcp://{self.ip}:{PORT}"
        published = self._container.attrs["NetworkSettings"]["Ports"][f"{PORT}/tcp"][0]["HostPort"]
        return f"tcp://{self._reach}:{published}"

    def limit_rates(self, rates: dict[str, float]) -> None:
        """Limit what leaves for each IPv4 address to so many bytes per second; TryAgain where that fails."""
        shape = json.dumps({"interface": "eth0", "rates": rates}).encode()
        helper = None
        try:
            helper = self._engine.create_python_container(
                ["-m", "fleetune.launching.docker.traffic_control"],
                user="0:0",
                cap_add=["NET_ADMIN"],
                network_mode=self.network_mode,
                stdin_open=True,
            )
            start_with_input(helper, shape)
            code = int(helper.wait(timeout=SHAPING_TIMEOUT_S)["StatusCode"])
            output = helper.logs(stdout=False, stderr=True).decode(errors="replace").strip() if code else ""
        except ENGINE_ERRORS as error:
            code, output = 1, describe_error(error)
        finally:
            if helper is not None:
                helper.remove(force=True, v=True)
        if code:
            reason = (output.splitlines() or ["no reason given"])[-1]
            raise TryAgain(f"device {self._device}: its links could not be shaped ({reason})")


def create_network(engine: EngineContext, token: str, *, internal: bool) -> Any:
    """Create a bridge network for a session; `internal`: without a route to anything else."""
    try:
        network = engine.client.networks.create(
            f"fleetune-{token}-{engine.name}", driver="bridge", internal=internal, labels=dict(engine.labels)
        )
        network.reload()
    except ENGINE_ERRORS as error:
        raise TryAgain(f"engine {engine.name} could not make a network ({describe_error(error)})") from None
    return network


def gateway_address(network: Any) -> str:
    """This machine's address on a network of its own engine."""
    return str(network.attrs["IPAM"]["Config"][0]["Gateway"])


def engine_address(engine: Engine) -> str:
    """IPv4 address of an engine's machine, resolved here because containers may have no name server."""
    try:
        return socket.gethostbyname(engine.host)
    except OSError as error:
        raise Refused(
            f"engine {engine.name}: {engine.host!r} is no address and does not resolve ({error.strerror}); "
            "give it a reach: the address at which the other devices find its machine"
        ) from None


MAX_PARALLEL = 4
NO_NETWORK = "none"


class DockerSites:
    """Sites of a fleet of which some devices, or all, are containers."""

    def __init__(self, placement: FleetPlacement, note: Callable[[str], None], watch: LifeWatch = USUAL) -> None:
        self._placement, self._note, self._watch = placement, note, watch
        self._session: Session | None = None
        self._pauses: dict[str, PauseContainer] = {}
        self._launchers: dict[str, DockerLauncher] = {}
        self.listen = LOOPBACK

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._session is not None:
            self._session.close()

    def launcher(self, device: str) -> Launcher:
        """The launcher of containers or of processes, as the device's placement says."""
        return self._launchers.get(device) or ProcessLauncher(self._placement.process_memory_bytes.get(device))

    def listen_settings(self, device: str) -> ListenSettings:
        """The port of the device's pause container, or this process's address for a device that is no container."""
        pause = self._pauses.get(device)
        if pause is None:
            return ListenSettings(bind=self.listen)
        links, others = self._placement.links, (each.device for each in self._placement.devices)
        delays_s = {other: links.link(other, device).latency_s for other in others if other != device} if links else {}
        return ListenSettings(
            bind=f"tcp://0.0.0.0:{PORT}",
            address=pause.address,
            delays_s={other: delay_s for other, delay_s in delays_s.items() if delay_s},
        )

    def _open(self) -> None:
        placement = self._placement
        engines = {each.engine: placement.engine(each.engine) for each in placement.in_containers}
        self._session = session = Session(engines.values())
        contexts = {
            name: session.open_engine(name, engine, placement.image, self._note) for name, engine in engines.items()
        }
        for each in placement.in_containers:
            _refuse_beyond_machine(each, session.descriptions[each.engine])
        one_local = len(contexts) == 1 and all(context.is_here for context in contexts.values())
        own_address = "" if one_local else self._own_address()
        networks = {
            name: create_network(context, session.token, internal=one_local) for name, context in contexts.items()
        }
        folder_mounts = {name: FolderMounts(context) for name, context in contexts.items()}
        self.listen = f"tcp://{own_address or gateway_address(*networks.values())}:*"

        def set_up(each: DevicePlacement) -> None:
            context, engine = contexts[each.engine], engines[each.engine]
            reach = own_address if context.is_here or engine is None else engine_address(engine)
            pause = PauseContainer(context, each.device, networks[each.engine], reach)
            self._pauses[each.device] = pause
            limits = ContainerLimits(cores=each.cores, memory_bytes=each.memory_bytes, gpu=each.gpu)
            mounts = folder_mounts[each.engine]
            self._launchers[each.device] = DockerLauncher(context, pause.network_mode, limits, mounts, self._watch)

        with ThreadPoolExecutor(MAX_PARALLEL) as pool:
            list(pool.map(set_up, placement.in_containers))
            list(pool.map(self._limit_rates, placement.in_containers))

    def _limit_rates(self, each: DevicePlacement) -> None:
        links = self._placement.links
        others = [other for other in self._pauses if other != each.device]
        if links is not None and others:
            rates = {self._pauses[other].ip: links.link(each.device, other).bytes_per_s for other in others}
            self._pauses[each.device].limit_rates(rates)

    def _own_address(self) -> str:
        """This machine's address as other engines see it: that of the interface with the route to the first engine."""
        hosts = [engine.host for engine in self._placement.engines if engine.host]
        for host in hosts:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
                probe.connect((host, 9))
                return str(probe.getsockname()[0])
        raise Refused(
            "devices on several engines cannot reach each other: set `reach` of each engine to its machine's address"
        )


class StageLaunchers:
    """Launchers of stages in containers without a network, one per image, on the engine of this machine.

    The engine is connected when the first launcher is needed.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._launchers: dict[str, DockerLauncher] = {}

    def launcher(self, image: str) -> Launcher:
        """The launcher that starts stages in containers of this image."""
        with self._lock:
            if self._session is None:
                self._session = Session((None,))
            if image not in self._launchers:
                context = self._session.open_engine(LOCAL, None, image, self._note)
                self._launchers[image] = DockerLauncher(context, NO_NETWORK, ContainerLimits(), FolderMounts(context))
            return self._launchers[image]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            if self._session is not None:
                self._session.close()
                self._session = None


def _refuse_beyond_machine(each: DevicePlacement, engine: EngineDescription) -> None:
    """Refuse limits above what the engine's machine has."""
    for what, wanted, available in (
        ("emulate.cores", each.cores, engine.cores),
        ("emulate.memory_bytes", each.memory_bytes, engine.memory_bytes),
    ):
        if wanted is not None and wanted > available:
            raise Refused(
                f"device {each.device}: {what} is {wanted:.16g} but the machine of engine {each.engine} has "
                f"{available:.16g}; ask for at most that"
            )
