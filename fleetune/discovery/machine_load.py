"""Load of a machine by other programs, from the kernel's counters: how much they compute, and who waits for a core.

References: proc(5) on /proc/stat; Linux kernel documentation, scheduler/sched-stats, on /proc/PID/schedstat. Rejected:
pressure stall information (/proc/pressure/cpu), which does not tell the waits of these processes from those of others.
"""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fleetune.cgroup import read_text
from fleetune.contracts.record import record
from fleetune.discovery.machine_facts import machine_id

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
