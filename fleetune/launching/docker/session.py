"""A session on container engines: connections, and containers that carry its label and go when it closes."""

import os
import secrets
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from docker.types import LogConfig, Mount

import fleetune
from containers import images
from fleetune.contracts.fleet import Engine
from fleetune.contracts.record import record
from fleetune.errors import Refused, TryAgain
from fleetune.launching.docker import cleanup
from fleetune.launching.docker.cleanup import Reaper, ReaperTask
from fleetune.launching.docker.engine_client import (
    ENGINE_ERRORS,
    EngineDescription,
    connect,
    describe_engine,
    describe_error,
    find_image,
    local_engine,
)
from fleetune.launching.docker.tar_archive import IMAGE_USER
from fleetune.launching.process import CHILD_ENVIRONMENT

PACKAGES = ("fleetune", "stages", "containers")
PROJECT = Path(fleetune.__file__).parents[1]
TMPFS_OPTIONS = "rw,nosuid,nodev,mode=1777,size=512m"
LOG_CONFIG = LogConfig(type=LogConfig.types.JSON, config={"max-size": "20m", "max-file": "2"})


@record
class EngineContext:
    """A connected engine and the image to use there."""

    name: str
    client: Any
    image_id: str
    mounted: bool
    """True if the image finds code and packages in mounted folders of this machine."""
    is_here: bool
    """True if its containers can see folders of this machine."""
    gpus: bool = False
    labels: Mapping[str, str]

    @property
    def environment(self) -> dict[str, str]:
        """Environment with which our code and packages are found in a container."""
        known = {"FLEETUNE_IMAGE": "" if self.mounted else self.image_id}
        return {**known, "PYTHONPATH": f"{PROJECT}:{_site_packages()}"} if self.mounted else known

    @property
    def code_mounts(self) -> list[Mount]:
        """Mounts of code and packages at their paths on this machine, so that compiled code is found again."""
        if not self.mounted:
            return []
        return [bind_mount(path, read_only=True) for path in (*(PROJECT / name for name in PACKAGES), _site_packages())]

    def create_container(self, command: list[str], **settings: Any) -> Any:
        """Create a container with our defaults: no root, no capabilities, a read-only root, the session's labels."""
        user, group = IMAGE_USER, IMAGE_USER
        if self.is_here and os.getuid():
            user, group = os.getuid(), os.getgid()  # the caller, so that both can write to shared folders
        return self.client.containers.create(
            self.image_id,
            command,
            **{
                "user": f"{user}:{group}",
                "cap_drop": ["ALL"],
                "security_opt": ["no-new-privileges"],
                "read_only": True,
                "tmpfs": {"/tmp": TMPFS_OPTIONS},
                "init": True,
                "labels": dict(self.labels),
                "log_config": LOG_CONFIG,
                "pids_limit": 512,
                **settings,
            },
        )

    def create_python_container(
        self,
        arguments: list[str],
        environment: Mapping[str, str] | None = None,
        mounts: Iterable[Mount] = (),
        **settings: Any,
    ) -> Any:
        """Create a container that runs Python with our code and packages on its path."""
        return self.create_container(
            ["-P", *arguments],
            environment={**CHILD_ENVIRONMENT, **(environment or {}), **self.environment},
            mounts=[*self.code_mounts, *mounts],
            **settings,
        )


class Session:
    """Everything that this process makes on its engines; `close` removes it, or a reaper if the process is killed."""

    def __init__(self, engines: Iterable[Engine | None], open_client: Callable[[Engine], Any] = connect) -> None:
        """`engines`: those that will be opened; None stands for the engine of this machine."""
        wanted, self._open_client = tuple(engines), open_client
        self.token = secrets.token_hex(4)
        self.descriptions: dict[str, EngineDescription] = {}
        self.labels = cleanup.session_labels(self.token)
        self._contexts: list[EngineContext] = []
        self._left = False
        """True if an engine may still have something of this session."""
        named = tuple(engine for engine in wanted if engine is not None)
        self._reaper = Reaper(ReaperTask(token=self.token, engines=named, local=None in wanted))

    def open_engine(self, name: str, engine: Engine | None, image: str, note: Callable[[str], None]) -> EngineContext:
        """Connect to an engine that has the image; Refused or TryAgain where that fails."""
        engine = _engine_of_this_machine() if engine is None else engine
        client = self._open_client(engine)
        try:
            cleanup.remove_orphans(client, own=engine.is_here)
            found = find_image(client, name, image)
            _refuse_outdated_image(client, name, image)
            description = describe_engine(client)
            if found.mounted and not engine.is_here:
                raise Refused(
                    f"engine {name}: image {image} uses files of this machine, which its containers cannot see; "
                    "use fleetune-train there (fleet.image)"
                )
        except BaseException as error:
            client.close()
            if isinstance(error, ENGINE_ERRORS):
                raise TryAgain(
                    f"engine {name} failed to report its state and that of image {image} ({describe_error(error)})"
                ) from None
            raise
        context = EngineContext(
            name=name,
            client=client,
            image_id=found.id,
            mounted=found.mounted,
            is_here=engine.is_here,
            gpus="nvidia" in description.runtimes,
            labels=self.labels if engine.is_here else {**self.labels, cleanup.ENGINE_LABEL: engine.address},
        )
        self._contexts.append(context)
        self.descriptions[name] = description
        note(f"engine {name}: {description.summary}")
        return context

    def close(self) -> None:
        """Remove everything that was made, or leave what an engine does not let go to the reaper; safe to repeat."""
        while self._contexts:
            context = self._contexts[-1]
            self._left |= not cleanup.remove(context.client, self.token)
            context.client.close()
            self._contexts.pop()
        if self._left:
            self._reaper.leave()
        else:
            self._reaper.dismiss()


def bind_mount(folder: Path, *, read_only: bool) -> Mount:
    """A mount of a folder of this machine at its own path."""
    return Mount(target=str(folder), source=str(folder), type="bind", read_only=read_only)


def start_with_input(container: Any, first_line: bytes) -> None:
    """Start a container and write one line to its stdin, which is then closed."""
    connection = container.attach_socket(params={"stdin": 1, "stream": 1})
    try:
        container.start()
        raw = getattr(connection, "_sock", connection)
        raw.sendall(first_line.rstrip(b"\n") + b"\n")
    finally:
        connection._response.close()  # first: it holds the connection open
        connection.close()


def _site_packages() -> Path:
    return Path(sysconfig.get_path("purelib"))


def _engine_of_this_machine() -> Engine:
    """The engine of devices without an engine entry; Refused where DOCKER_HOST names that of another machine."""
    engine = local_engine()
    if not engine.is_here:
        raise Refused(
            f"DOCKER_HOST names {engine.address}, an engine of another machine: write it under fleet.engines and give "
            "devices its name, or unset DOCKER_HOST"
        )
    return engine


def _refuse_outdated_image(client: Any, engine: str, image: str) -> None:
    """Refuse one of our images that was built from other code: its results would pass for those of this code."""
    target = {images.tag(target): target for target in images.TARGETS}.get(image)
    if target is None or not (images.PROJECT / "Dockerfile").is_file():
        return
    if client.images.get(image).labels.get(images.RECIPE_LABEL) != images.recipe_digest(images.PROJECT, target):
        raise Refused(
            f"engine {engine}: image {image} is older than the code: run make images (and, for an engine elsewhere, "
            f"docker save {image} | docker load there)"
        )
