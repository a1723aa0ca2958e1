"""Networks of a run and the pause containers on them, whose addresses and links are those of the devices."""

import json
import socket
from typing import Any

from fleetune.contracts.fleet import Engine
from fleetune.errors import Refused, TryAgain
from fleetune.launching.docker.engine_client import ENGINE_ERRORS, describe_error
from fleetune.launching.docker.session import EngineContext, start_with_input

PORT = 7700
"""Port at which a device's command listens; a device runs one such command at a time."""
PAUSE = ["-PSEc", "import signal; signal.pause()"]
MEMORY_BYTES = 64 << 20
SHAPING_TIMEOUT_S = 60


class PauseContainer:
    """A sleeping container that holds a device's network namespace; the device's commands join it."""

    def __init__(self, engine: EngineContext, device: str, network: Any, reach: str) -> None:
        """`reach`: the address at which its port is published; empty where its own address can be reached."""
        self._engine, self._device, self._reach = engine, device, reach
        ports = {f"{PORT}/tcp": None} if reach else {}  # on every interface, since reach may be that of a router
        try:
            self._container = engine.create_container(
                PAUSE,
                network=network.id,
                ports=ports,
                mem_limit=MEMORY_BYTES,
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


def gateway_of(network: Any) -> str:
    """This machine's address on a network of its own engine."""
    return str(network.attrs["IPAM"]["Config"][0]["Gateway"])


def ip_of(engine: Engine) -> str:
    """IPv4 address of an engine's machine, resolved here because containers may have no name server."""
    try:
        return socket.gethostbyname(engine.host)
    except OSError as error:
        raise Refused(
            f"engine {engine.name}: {engine.host!r} is no address and cannot be looked up ({error.strerror}); "
            "give it a reach: the address at which the other devices find its machine"
        ) from None
