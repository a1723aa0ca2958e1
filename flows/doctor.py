"""Checks of this machine for `fleetune doctor`. Nothing is written, and no other machine is contacted."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
from packaging.requirements import Requirement

from containers import engine_api, images, machine
from fleetune.contracts.record import record
from fleetune.formatting import gigabytes
from fleetune.launching.process import inherited_environment
from fleetune.linux import cgroup_limits

GOOD, LIMITED, MISSING = "good", "limited", "missing"
CHECKED_PACKAGES = ("torch", "transformers", "peft", "prefect", "fastapi", "sqlalchemy", "pyzmq")
"""Packages whose versions are checked; all others are dependencies of these."""
MEMORY_FOR_A_WORKER_BYTES = 500_000_000
"""Memory of a worker with torch and transformers, before it holds any unit."""
DISK_FOR_A_RUN_BYTES = 2_000_000_000
"""Space for data, checkpoint, optimizer state, logs and reports of a small model."""

ACCELERATORS_PROGRAM = """
import json, torch
count = torch.cuda.device_count() if torch.cuda.is_available() else 0
found = [torch.cuda.get_device_properties(i) for i in range(count)]
print(json.dumps([{"name": p.name, "memory_bytes": p.total_memory} for p in found]))
"""


@record
class Finding:
    """The result of one check."""

    topic: str
    state: str
    """`good`, `limited` (a run works, something else does not) or `missing` (no run works until it is there)."""
    words: str


def check_machine(root: Path) -> tuple[Finding, ...]:
    """Check everything that a run needs, with `root` as the folder of runs; takes a few seconds."""
    return (
        _python(),
        *_packages(),
        _cores(),
        _memory(),
        _accelerators(),
        *_containers(),
        _disk(root),
        _loopback(),
        _hub(),
    )


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] != (3, 11):
        return Finding(topic="Python", state=MISSING, words=f"{version}; 3.11 is needed")
    return Finding(topic="Python", state=GOOD, words=f"{version} on {sys.platform}")


def _packages() -> tuple[Finding, ...]:
    """One finding per checked package: its version against the project's requirement."""
    asked = {r.name.lower(): r for r in map(Requirement, metadata.requires("fleetune") or []) if r.marker is None}
    return tuple(_package(name, asked.get(name)) for name in CHECKED_PACKAGES)


def _package(name: str, asked: Requirement | None) -> Finding:
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(topic=name, state=MISSING, words=f"not installed; {asked} is needed: run make test")
    if asked and not asked.specifier.contains(version, prereleases=True):
        return Finding(topic=name, state=MISSING, words=f"{version}, but {asked} is needed: run make test")
    return Finding(topic=name, state=GOOD, words=f"{version}" + (f", as {asked.specifier} asks" if asked else ""))


def _cores() -> Finding:
    cores = usable_cores()
    load = os.getloadavg()[0]
    words = f"{cores:g} usable, {load:.1f} busy over the last minute"
    if load > cores / 2:
        return Finding(topic="CPU cores", state=LIMITED, words=words + "; what is measured now would look slower")
    return Finding(topic="CPU cores", state=GOOD, words=words + "; emulated devices may use up to that many together")


def usable_cores() -> float:
    """Cores this process may compute with: its affinity, and the quota of its control group."""
    cores = float(len(os.sched_getaffinity(0)))
    return min(cores, cgroup_limits().cores or cores)


def _memory() -> Finding:
    seen = psutil.virtual_memory()
    total = min(seen.total, cgroup_limits().memory_bytes or seen.total)
    free = min(seen.available, total)
    workers = free // MEMORY_FOR_A_WORKER_BYTES
    words = f"{gigabytes(free, 1)} free of {gigabytes(total, 1)}; room for about {workers} workers of a small model"
    return Finding(topic="Memory", state=GOOD if workers >= 3 else LIMITED if workers else MISSING, words=words)


def _accelerators() -> Finding:
    """Query PyTorch in a separate process, since a broken driver can kill the process that asks."""
    asked = [sys.executable, "-P", "-c", ACCELERATORS_PROGRAM]
    try:
        answer = subprocess.run(
            asked, env=inherited_environment(os.environ), capture_output=True, timeout=120, check=True, text=True
        ).stdout
        found: list[dict[str, Any]] = json.loads(answer)
    except (subprocess.SubprocessError, ValueError, OSError) as error:
        return Finding(
            topic="Accelerators", state=LIMITED, words=f"PyTorch gave no answer ({type(error).__name__}); CPU only"
        )
    if found:
        listed = ", ".join(f"cuda:{i} {d['name']} ({gigabytes(d['memory_bytes'], 1)})" for i, d in enumerate(found))
        return Finding(topic="Accelerators", state=GOOD, words=f"{listed}; a device takes one with accelerator: auto")
    return Finding(topic="Accelerators", state=GOOD, words="none that PyTorch can use; devices compute on the CPU")


def _containers() -> tuple[Finding, ...]:
    """Check the container engine, its images, and the shaping of links between containers."""
    meaning = "devices of fleet files without an engine run as processes, which need none"
    places = engine_api.candidate_sockets(os.environ)
    if not places:
        words = f"DOCKER_HOST names another machine, not asked; {meaning}"
        return (Finding(topic="Docker", state=LIMITED, words=words),)
    try:
        answer = engine_api.find_engine()
        images = _images(engine_api.image_labels(answer.socket))
    except engine_api.EngineUnavailable as error:
        advice = "make engine starts one" if engine_api.FLEETUNE_SOCKET in places else "start it, or unset DOCKER_HOST"
        return (Finding(topic="Docker", state=LIMITED, words=f"no engine {error}: {advice}; {meaning}"),)
    return (Finding(topic="Docker", state=GOOD, words=answer.summary), images, check_links())


def check_links(root: Path = Path("/")) -> Finding:
    """Check the shaping of links between containers, by the files of the kernel under `root`."""
    can, words = machine.describe_link_shaping(root)
    return Finding(topic="Shaped links", state=GOOD if can else LIMITED, words=words)


def _images(found: Mapping[str, Mapping[str, str]]) -> Finding:
    """Check the images that `make images` builds."""
    lacks = {target: images.unusable_reason(found, target) for target in images.TARGETS}
    had = [images.tag(target) for target, lack in lacks.items() if not lack]
    parts = [", ".join(had)] if had else []
    if missing := [target for target, lack in lacks.items() if lack]:
        reasons = ", ".join(lacks[target] for target in missing)
        only = "" if len(missing) == len(lacks) else f" ONLY='{' '.join(missing)}'"
        parts.append(f"{reasons}: make images{only}")
    return Finding(topic="Images", state=LIMITED if missing else GOOD, words="; ".join(parts))


def _disk(root: Path) -> Finding:
    there = next(place for place in (root.absolute(), *root.absolute().parents) if place.exists())
    free = shutil.disk_usage(there).free
    words = f"{gigabytes(free, 1)} free where runs are kept ({root})"
    if not there.is_dir() or not os.access(there, os.W_OK):
        return Finding(topic="Disk", state=MISSING, words=f"{there} cannot be written to; choose another with --root")
    if free < DISK_FOR_A_RUN_BYTES:
        return Finding(
            topic="Disk", state=LIMITED, words=f"{words}; a run may need {gigabytes(DISK_FOR_A_RUN_BYTES, 1)}"
        )
    return Finding(topic="Disk", state=GOOD, words=words)


def _loopback() -> Finding:
    """Send a byte over 127.0.0.1, which devices of one machine use to talk."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(2)
            with socket.create_connection(server.getsockname(), timeout=2) as sender:
                receiver, _ = server.accept()
                with receiver:
                    receiver.settimeout(2)
                    sender.sendall(b"1")
                    receiver.recv(1)
    except OSError as error:
        return Finding(
            topic="Loopback",
            state=MISSING,
            words=f"127.0.0.1 does not carry bytes ({error.strerror}); devices cannot talk",
        )
    return Finding(topic="Loopback", state=GOOD, words="127.0.0.1 carries bytes; devices of this machine can talk")


def _hub() -> Finding:
    if os.environ.get("HF_HUB_OFFLINE", "0") not in ("0", ""):
        return Finding(
            topic="Hub", state=LIMITED, words="HF_HUB_OFFLINE is set: models and data by folder, package or cache only"
        )
    try:
        metadata.version("datasets")
    except metadata.PackageNotFoundError:
        words = "not contacted; models by name are possible, data by name need pip install 'fleetune[hub]'"
        return Finding(topic="Hub", state=LIMITED, words=words)
    return Finding(
        topic="Hub", state=GOOD, words="not contacted; models and data by name are possible where it can be reached"
    )
