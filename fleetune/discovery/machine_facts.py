"""Machine facts: lasting properties of the machine that an agent runs on."""

import importlib.metadata
import importlib.util
import os
import platform
from pathlib import Path

import psutil

from fleetune.cgroup import cgroup_limits, read_text
from fleetune.contracts.record import positive, record
from fleetune.launching.placement import gpu_device_files

IMAGE_VARIABLE = "FLEETUNE_IMAGE"
"""Environment variable with the container's image digest, set by the Docker launcher."""


@record
class Accelerator:
    """One GPU."""

    name: str
    memory_bytes: int

    def __post_init__(self) -> None:
        positive(f"accelerator {self.name}", memory_bytes=self.memory_bytes)


@record
class MachineFacts:
    """Hardware, limits and software of one machine, as seen by an agent."""

    machine: str
    """Id of the running system, equal for all its agents; not part of a fingerprint."""
    cpu: str
    architecture: str
    cores: float
    """Cores that the agent may use; all of them in a container whose quota is not yet applied."""
    memory_bytes: int
    machine_cores: float
    """Cores of the machine, regardless of limits."""
    machine_memory_bytes: int
    accelerators: tuple[Accelerator, ...]
    python: str
    torch: str
    """Version; empty if torch is not installed."""
    image: str = ""
    """Digest of the container's image, which includes code and packages; empty outside containers."""

    def __post_init__(self) -> None:
        positive("facts", cores=self.cores, memory_bytes=self.memory_bytes)
        positive("facts", machine_cores=self.machine_cores, machine_memory_bytes=self.machine_memory_bytes)


def inspect_machine(wanted: str) -> MachineFacts:
    """Inspect this machine; `wanted` is the requested accelerator, and `cpu` skips the search for GPUs."""
    limits = cgroup_limits()
    cores = float(len(os.sched_getaffinity(0)))
    memory_bytes = int(psutil.virtual_memory().total)
    return MachineFacts(
        machine=machine_id(),
        cpu=_cpu_name(),
        architecture=platform.machine(),
        cores=min(cores, limits.cores or cores),
        memory_bytes=min(memory_bytes, limits.memory_bytes or memory_bytes),
        machine_cores=cores,
        machine_memory_bytes=memory_bytes,
        accelerators=() if wanted == "cpu" else _find_accelerators(),
        python=platform.python_version(),
        torch=_torch_version(),
        image=os.environ.get(IMAGE_VARIABLE, ""),
    )


def machine_id() -> str:
    """Id of the running system; all processes on it give the same, those in containers too."""
    return read_text(Path("/proc/sys/kernel/random/boot_id")).strip() or platform.node()


def _find_accelerators() -> tuple[Accelerator, ...]:
    """GPUs that torch can use; skips the import of torch, which takes seconds, if there is no GPU device file."""
    if not gpu_device_files() or importlib.util.find_spec("torch") is None:
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


def _cpu_name() -> str:
    lines = read_text(Path("/proc/cpuinfo")).splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model"))]
    return names[0] if names else platform.processor() or "unknown"
