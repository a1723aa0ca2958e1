"""The machine that an agent runs on: its lasting properties, and its load by other programs.

Load is read from the kernel's counters: how much other programs compute, and who waits for a core. References: proc(5)
on /proc/stat; Linux kernel documentation, scheduler/sched-stats, on /proc/PID/schedstat. Rejected: pressure stall
information (/proc/pressure/cpu), which does not tell the waits of these processes from those of others.
"""

import importlib.metadata
import importlib.util
import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from fleetune.contracts.record import positive, record
from fleetune.launching.placement import gpu_device_files
from fleetune.linux import cgroup_limits, read_text

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


STAT, TASKS = Path("/proc/stat"), Path("/proc/self/task")
IDLE_COLUMNS = (3, 4)
"""`idle` and `iowait` in a core's line of /proc/stat."""
STEAL_COLUMN, COLUMNS = 7, 8
"""`steal`, and the columns that add up to a core's time; the rest (`guest`) is part of `user`."""


@record
class LoadSample:
    """Counters of one process and of the cores that it may use; only differences between two samples mean anything."""

    machine: str
    cores: int
    at_s: float
    """Time of this machine's clock."""
    busy_s: float
    """Processor seconds of all programs, and of other machines on the same hardware."""
    stolen_s: float
    """The part of `busy_s` that a hypervisor gave to other machines."""
    own_s: float
    """Processor seconds of this process."""
    waited_s: float | None
    """Seconds that its threads were ready and waited for a core; None if the kernel does not tell."""


@record
class MachineLoad:
    """Use of a machine by other programs during an interval."""

    cores: int
    other_cores: float
    """Cores that programs other than the observed processes used, on average."""
    waiting: float
    """Share of the interval that the observed processes waited for a core; at most 1."""


def sample_load(stat: Path = STAT, tasks: Path = TASKS) -> LoadSample:
    """Read the counters now; those that this system lacks are 0."""
    usable = os.sched_getaffinity(0)
    busy_s, stolen_s = _processor_seconds(stat, [f"cpu{number}" for number in sorted(usable)])
    return LoadSample(
        machine=machine_id(),
        cores=len(usable),
        at_s=time.monotonic(),
        busy_s=busy_s,
        stolen_s=stolen_s,
        own_s=time.process_time(),
        waited_s=_waited_s(tasks),
    )


def load_between(before: Mapping[str, LoadSample], after: Mapping[str, LoadSample], machine: str) -> MachineLoad:
    """Load of one machine between two samples of every process, name -> sample; processes elsewhere do not count."""
    pairs = [(sample, after[name]) for name, sample in before.items() if sample.machine == machine]
    first, last = pairs[0]
    elapsed_s = last.at_s - first.at_s
    if elapsed_s <= 0:
        return MachineLoad(cores=first.cores, other_cores=0.0, waiting=0.0)
    others_s = last.busy_s - first.busy_s - sum(end.own_s - start.own_s for start, end in pairs)
    other_cores = min(float(first.cores), max(0.0, others_s) / elapsed_s)
    waits_s = [end.waited_s - start.waited_s for start, end in pairs if None not in (start.waited_s, end.waited_s)]  # type: ignore[operator]
    stolen = (last.stolen_s - first.stolen_s) / (elapsed_s * first.cores)
    waiting = sum(waits_s) / elapsed_s + stolen if len(waits_s) == len(pairs) else other_cores / first.cores
    return MachineLoad(cores=first.cores, other_cores=other_cores, waiting=min(1.0, max(0.0, waiting)))


class _ProcessorSeconds(NamedTuple):
    busy_s: float
    stolen_s: float


def _processor_seconds(stat: Path, cores: Sequence[str]) -> _ProcessorSeconds:
    """Processor seconds of the named cores since the machine started."""
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    busy = stolen = 0
    for line in read_text(stat).splitlines():
        name, *columns = line.split()
        if name in cores:
            ticks = [int(column) for column in columns[:COLUMNS]]
            busy += sum(ticks) - sum(ticks[column] for column in IDLE_COLUMNS)
            stolen += ticks[STEAL_COLUMN]
    return _ProcessorSeconds(busy / ticks_per_s, stolen / ticks_per_s)


def _waited_s(tasks: Path) -> float | None:
    """Seconds that the threads of this process have waited for a core; None if the kernel does not count them."""
    waited_ns = [read_text(folder / "schedstat").split() for folder in tasks.glob("*")]
    known = [int(words[1]) for words in waited_ns if len(words) > 1]
    return sum(known) / 1e9 if known else None
