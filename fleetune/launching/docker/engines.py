"""Connections to container engines, what they say of themselves, and whether they have an image.

An engine that does not answer is asked before the docker library is: that leaves sockets open where nothing listens.
Whatever goes wrong is one sentence. Certificates are the engine's own business: neither REQUESTS_CA_BUNDLE nor a proxy
of the environment has a say in them.
"""

import os
import shutil
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError, DockerException, NotFound
from docker.tls import TLSConfig
from docker.utils import version_lt
from requests.exceptions import JSONDecodeError, RequestException

from containers import answers
from fleetune.contracts.fleet import IMAGE, Engine
from fleetune.contracts.record import record
from fleetune.errors import FleetuneError, Refused, TryAgain
from fleetune.launching.docker.ssh import SshAdapter, command
from fleetune.launching.docker.tls import KeepAliveAdapter, complaint, proven

__all__ = ["EngineFacts", "Image", "connect", "engine_facts", "has_image", "image_of", "local"]

PATIENCE_S = 10.0
"""For the first answer; ssh has as much again, to log in."""
READ_S = 120.0
"""For any later one; `wait`, `attach`, `events` and logs that are followed may be silent for ever."""
OLDEST = "1.40"
"""Of the versions of the engine's API: that of Docker 19.03."""
MOUNTED = "fleetune.mounted"
"""Label of images that find code and packages in folders mounted from this machine."""
GPU = "nvidia"
SHOWN = 8


@record
class Image:
    """An image on one engine."""

    id: str
    mounted: bool
    """Whether it holds no code of ours, but finds it in folders mounted from this machine."""
    architecture: str


@record
class EngineFacts:
    """What an engine says of itself and of its machine."""

    cores: int
    memory_bytes: int
    version: str
    os: str
    architecture: str
    runtimes: tuple[str, ...]
    accelerators: tuple[str, ...]
    """As the engine names them; only `nvidia`, once, where it has the runtime but no list."""

    @property
    def words(self) -> str:
        """In a few words, for people."""
        more = f", {', '.join(self.accelerators)}" if self.accelerators else ""
        return (
            f"{self.version} on {self.os} ({self.architecture}), "
            f"{self.cores} cores, {self.memory_bytes / 1e9:.1f} GB{more}; runtimes {', '.join(self.runtimes) or 'none'}"
        )


def local(environment: Mapping[str, str] = os.environ) -> Engine:
    """The engine of this machine: the one DOCKER_HOST names (with DOCKER_TLS_VERIFY and DOCKER_CERT_PATH), else the
    first that answers where one usually listens.

    TryAgain when none answers; Refused when DOCKER_HOST is no address, or one of an engine that answers anybody.
    """
    host = environment.get("DOCKER_HOST", "")
    if host and not host.startswith("unix:"):
        secure = host.startswith("tcp:") and environment.get("DOCKER_TLS_VERIFY")
        if host.startswith("tcp:") and not secure:
            raise Refused(
                f"DOCKER_HOST is {host}, and DOCKER_TLS_VERIFY is not set: an engine that answers anybody gives its "
                "whole machine away; set DOCKER_TLS_VERIFY=1, and DOCKER_CERT_PATH to the folder with ca.pem, "
                "cert.pem and key.pem"
            )
        folder = environment.get("DOCKER_CERT_PATH") or str(Path.home() / ".docker")
        return Engine(name="DOCKER_HOST", address=host, tls=folder if secure else None)
    try:
        answer = answers.find(environment)
    except answers.NoAnswer as silence:
        raise TryAgain(f"no container engine answers {silence}: run make engine, or see fleetune doctor") from None
    return Engine(name="DOCKER_HOST" if host else "this-machine", address=f"unix://{answer.socket}")


def connect(engine: Engine | None, environment: Mapping[str, str] = os.environ) -> docker.DockerClient:
    """A client of `engine`, to be closed; None: of the one that `local` finds.

    TryAgain when it cannot be reached; Refused when certificates are missing, malformed, or not accepted on one side.
    """
    engine = engine or local(environment)
    scheme = engine.address.partition(":")[0]
    client = {"unix": _by_socket, "ssh": _by_ssh, "tcp": _by_tls}[scheme](engine)
    client.api.trust_env = False
    try:
        client.api._version = _negotiated(engine, client, PATIENCE_S if scheme != "ssh" else 2 * PATIENCE_S)
    except BaseException:
        client.close()
        raise
    client.api.timeout = READ_S
    return client


def has_image(client: docker.DockerClient, image: str) -> bool:
    """Whether an engine has an image; nothing is pulled."""
    try:
        client.images.get(image)
    except NotFound:
        return False
    return True


def image_of(client: docker.DockerClient, engine_name: str, image: str = IMAGE) -> Image:
    """The image of that name on an engine; Refused with what it has instead."""
    try:
        said = client.images.get(image).attrs
    except NotFound:
        tags = {tag.removesuffix(":latest") for each in client.images.list() for tag in each.tags}
        ours_first = sorted(tags, key=lambda tag: (not tag.startswith("fleetune"), tag))
        more = f" and {len(tags) - SHOWN} more" if len(tags) > SHOWN else ""
        raise Refused(
            f"engine {engine_name} has no image {image}; it has {', '.join(ours_first[:SHOWN]) or 'none'}{more}; "
            f"run make images (or docker save {image} | docker load, onto that engine)"
        ) from None
    labels = (said.get("Config") or {}).get("Labels") or {}
    return Image(id=str(said["Id"]), mounted=MOUNTED in labels, architecture=str(said.get("Architecture", "")))


def engine_facts(client: docker.DockerClient) -> EngineFacts:
    """What an engine says of itself."""
    said = client.info()
    runtimes = tuple(sorted(said.get("Runtimes") or {}))
    return EngineFacts(
        cores=int(said["NCPU"]),
        memory_bytes=int(said["MemTotal"]),
        version=str(said["ServerVersion"]),
        os=str(said.get("OperatingSystem") or said.get("OSType", "")),
        architecture=str(said.get("Architecture", "")),
        runtimes=runtimes,
        accelerators=tuple(_accelerators(said)) or ((GPU,) if GPU in runtimes else ()),
    )


def _accelerators(said: Mapping[str, Any]) -> Iterator[str]:
    """By the container device interface (newer engines), and as resources of a swarm's node."""
    for device in said.get("DiscoveredDevices") or ():
        yield str(device.get("ID", ""))
    for resource in said.get("GenericResources") or ():
        named = resource.get("NamedResourceSpec")
        if named:
            yield f"{named.get('Kind', '')}={named.get('Value', '')}"


def _named(engine: Engine) -> str:
    return f"engine {engine.name} ({engine.address})"


def _by_socket(engine: Engine) -> docker.DockerClient:
    try:
        answers.ask(engine.address.removeprefix("unix://"))
    except answers.NoAnswer as silence:
        raise TryAgain(f"engine {engine.name} does not answer {silence}: start it, or see fleetune doctor") from None
    return docker.DockerClient(base_url=engine.address, version=OLDEST)


def _by_ssh(engine: Engine) -> docker.DockerClient:
    if shutil.which("ssh") is None:
        raise Refused(f"{_named(engine)} is reached by ssh, and this machine has no ssh: install its client")
    client = docker.DockerClient(base_url="unix:///ssh", version=OLDEST)  # the path is never looked at
    client.api.mount("http+docker://", SshAdapter(command(engine.address)))
    return client


def _by_tls(engine: Engine) -> docker.DockerClient:
    files = proven(_named(engine), Path(engine.tls or ""))
    tls = TLSConfig(client_cert=(str(files.certificate), str(files.key)), ca_cert=str(files.authority), verify=True)
    client = docker.DockerClient(base_url=engine.address, version=OLDEST, tls=tls)
    client.api.mount("https://", KeepAliveAdapter())
    return client


def _negotiated(engine: Engine, client: docker.DockerClient, patience_s: float) -> str:
    """The version of the API that an engine speaks; the first question that it is asked."""
    client.api.timeout = patience_s
    try:
        version = str(client.version(api_version=False)["ApiVersion"])
    except (RequestException, DockerException, KeyError, TypeError) as error:
        raise _failure(engine, client, error, patience_s) from None
    if version_lt(version, OLDEST):
        raise Refused(f"{_named(engine)} speaks version {version} of the API; from {OLDEST} on is needed")
    return version


def _failure(engine: Engine, client: docker.DockerClient, error: BaseException, patience_s: float) -> FleetuneError:
    """Why the first question got no answer, in one sentence."""
    owner = _named(engine)
    if engine.tls is not None and (refused := complaint(owner, engine.address, Path(engine.tls), error)):
        return refused
    if isinstance(error, APIError):
        return TryAgain(f"{owner} answers, but not as it should ({error.explanation or error}): see its log")
    if isinstance(error, JSONDecodeError) or not isinstance(error, RequestException):
        return TryAgain(f"what answers at {engine.address} is no container engine: correct the address of {owner}")
    if engine.address.startswith("ssh:"):
        said = client.api.get_adapter("http+docker://").last_words() or f"nothing within {patience_s:g} s"
        return TryAgain(
            f"{owner} cannot be reached by ssh, which says: {said}; "
            f"see that `{' '.join(command(engine.address)[:-1])} docker version` works without a question"
        )
    return TryAgain(
        f"{owner} does not answer ({_reason(error, patience_s)}): start it, correct its address, or see fleetune doctor"
    )


def _reason(error: BaseException, patience_s: float) -> str:
    """The system's own words, from the innermost of errors that wrap each other."""
    reason = ""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, TimeoutError):
            reason = f"nothing within {patience_s:g} s"
        elif isinstance(seen, OSError) and seen.strerror and not isinstance(seen, ssl.SSLError):
            reason = seen.strerror
        seen = seen.__cause__ or seen.__context__
    return reason or type(error).__name__
