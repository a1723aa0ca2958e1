"""Connections to container engines: clients, what engines report of themselves, and their images.

A unix socket is probed before the docker library uses it, because that library leaves sockets open where nothing
listens. Every failure is one sentence. Only an engine's own certificates count: REQUESTS_CA_BUNDLE and proxies of the
environment are ignored.
"""

import os
import shutil
import ssl
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import docker
import requests
from docker.errors import APIError, DockerException, NotFound
from docker.tls import TLSConfig
from docker.utils import version_lt
from requests.exceptions import JSONDecodeError, RequestException

from containers import engine_api
from fleetune.contracts.fleet import IMAGE, Engine
from fleetune.contracts.record import record
from fleetune.contracts.url_passwords import refuse_password
from fleetune.errors import FleetuneError, Refused, TryAgain
from fleetune.filesystem import expanded
from fleetune.formatting import gigabytes, shortlist
from fleetune.launching.docker.transports import KeepAliveAdapter, SshAdapter, load_tls_files, ssh_command, tls_failure

CONNECT_TIMEOUT_S = 10.0
"""Limit of the first request; over ssh twice as long, to log in."""
READ_TIMEOUT_S = 120.0
"""Limit of later requests; `wait`, `attach`, `events` and followed logs have none."""
MIN_API_VERSION = "1.40"
"""Oldest supported version of the API, that of Docker 19.03."""
MOUNTED_LABEL = "fleetune.mounted"
"""Label of images that find code and packages in mounted folders of this machine."""
GPU_RUNTIME = "nvidia"
MAX_LISTED = 8
ENGINE_ERRORS = (DockerException, requests.RequestException, OSError)
"""Errors of an engine that refuses a request or cannot be reached."""


@record
class Image:
    """An image on one engine."""

    id: str
    mounted: bool
    """True if it holds no code of ours, but finds it in mounted folders of this machine."""
    architecture: str


@record
class EngineDescription:
    """An engine and its machine, as the engine reports them."""

    cores: int
    memory_bytes: int
    version: str
    os: str
    architecture: str
    runtimes: tuple[str, ...]
    accelerators: tuple[str, ...]
    """Names that the engine gives its accelerators; `nvidia` where it has that runtime but no list."""

    @property
    def summary(self) -> str:
        """One line for people."""
        more = f", {', '.join(self.accelerators)}" if self.accelerators else ""
        return (
            f"{self.version} on {self.os} ({self.architecture}), {self.cores} cores, "
            f"{gigabytes(self.memory_bytes, 1)}{more}; runtimes {', '.join(self.runtimes) or 'none'}"
        )


def local_engine(environment: Mapping[str, str] = os.environ) -> Engine:
    """The default engine: that of DOCKER_HOST (with DOCKER_TLS_VERIFY and DOCKER_CERT_PATH), else the first that
    answers at a usual socket.

    TryAgain when none answers; Refused when DOCKER_HOST names an engine that accepts anybody.
    """
    host = environment.get("DOCKER_HOST", "")
    refuse_password("DOCKER_HOST", host, "leave it out: engines ask for certificates, and ssh for a key")
    if host and not host.startswith("unix:"):
        secure = host.startswith("tcp:") and environment.get("DOCKER_TLS_VERIFY")
        if host.startswith("tcp:") and not secure:
            raise Refused(
                f"DOCKER_HOST is {host}, and DOCKER_TLS_VERIFY is not set: an engine that answers anybody gives its "
                "whole machine away; set DOCKER_TLS_VERIFY=1, and DOCKER_CERT_PATH to the folder with ca.pem, "
                "cert.pem and key.pem"
            )
        folder = environment.get("DOCKER_CERT_PATH") or str(expanded("~/.docker"))
        return Engine(name="DOCKER_HOST", address=host, tls=folder if secure else None)
    try:
        info = engine_api.find_engine(environment)
    except engine_api.EngineUnavailable as error:
        raise TryAgain(f"no container engine answers {error}: run make engine, or see fleetune doctor") from None
    return Engine(name="DOCKER_HOST" if host else "this-machine", address=f"unix://{info.socket}")


def connect(engine: Engine | None, environment: Mapping[str, str] = os.environ) -> docker.DockerClient:
    """A client of `engine` (None: of `local_engine`), to be closed.

    TryAgain when it cannot be reached; Refused when certificates are missing, malformed, or not accepted on one side.
    """
    engine = engine or local_engine(environment)
    scheme = engine.address.partition(":")[0]
    client = {"unix": _socket_client, "ssh": _ssh_client, "tcp": _tls_client}[scheme](engine)
    client.api.trust_env = False
    try:
        client.api._version = _api_version(
            engine, client, CONNECT_TIMEOUT_S if scheme != "ssh" else 2 * CONNECT_TIMEOUT_S
        )
    except BaseException:
        client.close()
        raise
    client.api.timeout = READ_TIMEOUT_S
    return client


def find_image(client: docker.DockerClient, engine_name: str, image: str = IMAGE) -> Image:
    """An image of an engine by name; Refused, with the images it has, where it is missing."""
    try:
        attrs = client.images.get(image).attrs
    except NotFound:
        tags = {tag.removesuffix(":latest") for each in client.images.list() for tag in each.tags}
        ours_first = sorted(tags, key=lambda tag: (not tag.startswith("fleetune"), tag))
        raise Refused(
            f"engine {engine_name} has no image {image}; it has {shortlist(ours_first, MAX_LISTED) or 'none'}; "
            f"run make images (or docker save {image} | docker load, onto that engine)"
        ) from None
    labels = (attrs.get("Config") or {}).get("Labels") or {}
    return Image(id=str(attrs["Id"]), mounted=MOUNTED_LABEL in labels, architecture=str(attrs.get("Architecture", "")))


def image_id(image: str, environment: Mapping[str, str] = os.environ) -> str:
    """Id of an image on the local engine: a digest of what it holds, whatever names it has.

    TryAgain when no engine answers; Refused, with the images it has, where it is missing.
    """
    with closing(connect(None, environment)) as client:
        try:
            return find_image(client, "of this machine", image).id
        except ENGINE_ERRORS as error:
            raise TryAgain(f"the engine of this machine failed to report image {image} ({error})") from None


def describe_engine(client: docker.DockerClient) -> EngineDescription:
    """Ask an engine for its description."""
    info = client.info()
    runtimes = tuple(sorted(info.get("Runtimes") or {}))
    return EngineDescription(
        cores=int(info["NCPU"]),
        memory_bytes=int(info["MemTotal"]),
        version=str(info["ServerVersion"]),
        os=str(info.get("OperatingSystem") or info.get("OSType", "")),
        architecture=str(info.get("Architecture", "")),
        runtimes=runtimes,
        accelerators=tuple(_accelerators(info)) or ((GPU_RUNTIME,) if GPU_RUNTIME in runtimes else ()),
    )


def _accelerators(info: Mapping[str, Any]) -> Iterator[str]:
    """Names from the container device interface (newer engines) and from the resources of a swarm node."""
    for device in info.get("DiscoveredDevices") or ():
        yield str(device.get("ID", ""))
    for resource in info.get("GenericResources") or ():
        named = resource.get("NamedResourceSpec")
        if named:
            yield f"{named.get('Kind', '')}={named.get('Value', '')}"


def _full_name(engine: Engine) -> str:
    return f"engine {engine.name} ({engine.address})"


def _socket_client(engine: Engine) -> docker.DockerClient:
    try:
        engine_api.engine_info(engine.address.removeprefix("unix://"))
    except engine_api.EngineUnavailable as error:
        raise TryAgain(f"engine {engine.name} does not answer {error}: start it, or see fleetune doctor") from None
    return docker.DockerClient(base_url=engine.address, version=MIN_API_VERSION)


def _ssh_client(engine: Engine) -> docker.DockerClient:
    if shutil.which("ssh") is None:
        raise Refused(f"{_full_name(engine)} is reached by ssh, and this machine has no ssh: install its client")
    client = docker.DockerClient(base_url="unix:///ssh", version=MIN_API_VERSION)  # the path is not used
    client.api.mount("http+docker://", SshAdapter(ssh_command(engine.address)))
    return client


def _tls_client(engine: Engine) -> docker.DockerClient:
    files = load_tls_files(_full_name(engine), Path(engine.tls or ""))
    tls = TLSConfig(client_cert=(str(files.certificate), str(files.key)), ca_cert=str(files.authority), verify=True)
    client = docker.DockerClient(base_url=engine.address, version=MIN_API_VERSION, tls=tls)
    client.api.mount("https://", KeepAliveAdapter())
    return client


def _api_version(engine: Engine, client: docker.DockerClient, timeout_s: float) -> str:
    """The engine's version of the API: the first request on a connection, which fails where there is no engine."""
    client.api.timeout = timeout_s
    try:
        version = str(client.version(api_version=False)["ApiVersion"])
    except (RequestException, DockerException, KeyError, TypeError) as error:
        raise _connection_failure(engine, client, error, timeout_s) from None
    if version_lt(version, MIN_API_VERSION):
        raise Refused(f"{_full_name(engine)} speaks version {version} of the API; from {MIN_API_VERSION} on is needed")
    return version


def _connection_failure(
    engine: Engine, client: docker.DockerClient, error: BaseException, timeout_s: float
) -> FleetuneError:
    """The error, in one sentence, for a first request that failed."""
    owner = _full_name(engine)
    if engine.tls is not None and (refused := tls_failure(owner, engine.address, Path(engine.tls), error)):
        return refused
    if isinstance(error, APIError):
        return TryAgain(f"{owner} answers, but not as it should ({error.explanation or error}): see its log")
    if isinstance(error, JSONDecodeError) or not isinstance(error, RequestException):
        return TryAgain(f"{engine.address} answers, but is not a container engine: correct the address of {owner}")
    if engine.address.startswith("ssh:"):
        reason = client.api.get_adapter("http+docker://").last_error_line() or f"nothing within {timeout_s:g} s"
        return TryAgain(
            f"{owner} cannot be reached by ssh, which says: {reason}; "
            f"see that `{' '.join(ssh_command(engine.address)[:-1])} docker version` works without a prompt"
        )
    return TryAgain(
        f"{owner} does not answer ({_reason(error, timeout_s)}): start it, correct its address, or see fleetune doctor"
    )


def _reason(error: BaseException, timeout_s: float) -> str:
    """The message of the system, from the innermost of nested errors."""
    reason = ""
    current: BaseException | None = error
    while current is not None:
        if isinstance(current, TimeoutError):
            reason = f"nothing within {timeout_s:g} s"
        elif isinstance(current, OSError) and current.strerror and not isinstance(current, ssl.SSLError):
            reason = current.strerror
        current = current.__cause__ or current.__context__
    return reason or type(error).__name__


def describe_error(error: BaseException) -> str:
    """An engine's error message in one line."""
    message = getattr(error, "explanation", None) or str(error) or type(error).__name__
    return " ".join(str(message).split())[:300]
