"""Container engines that devices stand for, and the image that their containers are made of."""

from urllib.parse import urlsplit

from fleetune.contracts.record import a_name, record
from fleetune.errors import Refused

LOCAL = "local"
"""The engine of this machine: what DOCKER_HOST names, else the usual socket, else that of `make engine`."""
IMAGE = "fleetune-train"
"""What `make images` calls the image that can train."""
SCHEMES = ("unix", "ssh", "tcp")


@record
class Engine:
    """A container engine by name."""

    name: str
    address: str
    """`unix:///PATH`, `ssh://[USER@]HOST[:PORT]` or `tcp://HOST:PORT` (always with mutual TLS)."""
    tls: str | None = None
    """Folder with ca.pem, cert.pem and key.pem, as Docker calls them; for `tcp` only, and needed there."""
    reach: str | None = None
    """Address of its machine for the other devices; by default the host of `address`."""

    def __post_init__(self) -> None:
        a_name("engine", self.name)
        owner = f"engine {self.name}"
        if self.name == LOCAL:
            raise Refused(f"{owner}: this name means the engine of this machine; choose another")
        try:
            parts = urlsplit(self.address)
            port = parts.port
        except ValueError:
            raise Refused(f"{owner}: address {self.address!r} has no usable port; write tcp://HOST:PORT") from None
        whole = bool(parts.path.strip("/")) if parts.scheme == "unix" else bool(parts.hostname)
        if parts.scheme not in SCHEMES or not whole:
            raise Refused(
                f"{owner}: address is {self.address!r}; allowed are unix:///PATH, ssh://USER@HOST and tcp://HOST:PORT"
            )
        if parts.scheme == "tcp" and (self.tls is None or port is None):
            raise Refused(
                f"{owner}: {self.address} needs a port and tls, the folder with ca.pem, cert.pem and key.pem: "
                "an engine that answers anybody gives its whole machine away"
            )
        if parts.scheme != "tcp" and self.tls is not None:
            raise Refused(f"{owner}: tls is for tcp:// addresses; leave it out")

    @property
    def is_here(self) -> bool:
        """Whether its containers can see folders of this machine."""
        return self.address.startswith("unix:")

    @property
    def host(self) -> str:
        """Where the other devices find its machine; `` for one of this machine."""
        return self.reach or urlsplit(self.address).hostname or ""
