"""What an agent finds out about the machine it runs on; nothing here changes from minute to minute."""

import importlib.metadata
import importlib.util
import os
import platform
from pathlib import Path

import psutil

from fleetune.contracts.record import positive, record
from fleetune.discovery.cgroup import cgroup_limits
from fleetune.launching.quarters import gpu_nodes

IMAGE_VARIABLE = "FLEETUNE_IMAGE"
"""Set by whoever starts containers: `Facts.image`."""


@record
class Accelerator:
    """One GPU."""

    name: str
    memory_bytes: int

    def __post_init__(self) -> None:
        positive(f"accelerator {self.name}", memory_bytes=self.memory_bytes)


@record
class Facts:
    """One machine, with the limits of the container the agent runs in."""

    machine: str
    """The same for all agents on one running system, different for any other; not part of a fingerprint."""
    cpu: str
    architecture: str
    cores: float
    """What the agent may use of them; of a container whose quota does not bind yet: all."""
    memory_bytes: int
    machine_cores: float
    """What the machine has, whatever its containers are held to."""
    machine_memory_bytes: int
    accelerators: tuple[Accelerator, ...]
    python: str
    torch: str
    """Version; empty where torch is not installed."""
    image: str = ""
    """Content of the container's image, where code and packages are part of it."""

    def __post_init__(self) -> None:
        positive("facts", cores=self.cores, memory_bytes=self.memory_bytes)
        positive("facts", machine_cores=self.machine_cores, machine_memory_bytes=self.machine_memory_bytes)


def look(wanted: str) -> Facts:
    """Find out about this machine; `wanted` is the request's accelerator: `cpu` spares the look for one."""
    limits = cgroup_limits()
    cores = float(len(os.sched_getaffinity(0)))
    memory_bytes = int(psutil.virtual_memory().total)
    return Facts(
        machine=_first_line(Path("/proc/sys/kernel/random/boot_id")) or platform.node(),
        cpu=_cpu(),
        architecture=platform.machine(),
        cores=min(cores, limits.cores or cores),
        memory_bytes=min(memory_bytes, limits.memory_bytes or memory_bytes),
        machine_cores=cores,
        machine_memory_bytes=memory_bytes,
        accelerators=() if wanted == "cpu" else _accelerators(),
        python=platform.python_version(),
        torch=_torch_version(),
        image=os.environ.get(IMAGE_VARIABLE, ""),
    )


def _accelerators() -> tuple[Accelerator, ...]:
    """Importing torch takes seconds, so only where there is a driver's device file and a torch to use it."""
    if not gpu_nodes() or importlib.util.find_spec("torch") is None:
        return ()
    import torch

    if not torch.cuda.is_available():
        return ()
    found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return tuple(Accelerator(name=str(each.name), memory_bytes=int(each.total_memory)) for each in found)


def _torch_version() -> str:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model"))]
    return names[0] if names else platform.processor() or "unknown"


def _first_line(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
