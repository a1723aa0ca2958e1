"""A device's place on the network: a container that only sleeps, whose address and links are those of the device."""

import json
from typing import Any

from fleetune.errors import TryAgain
from fleetune.launching.docker.housing import Yard, create, tell
from fleetune.launching.docker.trouble import SILENT, why

PORT = 7700
"""Where what runs at a device listens; a device runs one such command at a time."""
SLEEP = ["-PSEc", "import signal; signal.pause()"]
MEMORY_BYTES = 64 << 20
SHAPING_S = 60


class Anchor:
    """The container; what the device runs joins its network namespace."""

    def __init__(self, yard: Yard, device: str, network: Any, reach: str) -> None:
        """`reach`: the address its port is published at; empty where its own address can be reached."""
        self._yard, self._device, self._reach = yard, device, reach
        ports = {f"{PORT}/tcp": None} if reach else {}  # on every interface: reach may be that of a router before it
        try:
            self._container = create(
                yard,
                SLEEP,
                network=network.id,
                ports=ports,
                mem_limit=MEMORY_BYTES,
                environment={"FLEETUNE_DEVICE": device},
            )
            self._container.start()
            self._container.reload()
        except SILENT as error:
            raise TryAgain(
                f"device {device}: engine {yard.name} could not give it a place on the network ({why(error)})"
            ) from None
        (attached,) = self._container.attrs["NetworkSettings"]["Networks"].values()
        self.ip = str(attached["IPAddress"])

    @property
    def mode(self) -> str:
        """The network mode of containers that share its namespace."""
        return f"container:{self._container.id}"

    @property
    def address(self) -> str:
        """What connects to the device."""
        if not self._reach:
            return f"tcp://{self.ip}:{PORT}"
        published = self._container.attrs["NetworkSettings"]["Ports"][f"{PORT}/tcp"][0]["HostPort"]
        return f"tcp://{self._reach}:{published}"

    def shape(self, rates: dict[str, float]) -> None:
        """Hold what leaves for each address to so many bytes per second."""
        asked = json.dumps({"interface": "eth0", "rates": rates}).encode()
        helper = None
        try:
            helper = create(
                self._yard,
                ["-P", "-m", "fleetune.launching.docker.shape"],
                user="0:0",
                cap_add=["NET_ADMIN"],
                network_mode=self.mode,
                stdin_open=True,
                **self._yard.code(),
            )
            tell(helper, asked)
            code = int(helper.wait(timeout=SHAPING_S)["StatusCode"])
            said = helper.logs(stdout=False, stderr=True).decode(errors="replace").strip() if code else ""
        except SILENT as error:
            code, said = 1, why(error)
        finally:
            if helper is not None:
                helper.remove(force=True, v=True)
        if code:
            last = (said.splitlines() or ["no reason given"])[-1]
            raise TryAgain(f"device {self._device}: its links could not be shaped ({last})")
