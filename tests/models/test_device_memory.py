"""Memory of a GPU, without one: torch's functions and NVML are stand-ins. tests/cuda has the same on a real one."""

import os
from types import SimpleNamespace

import pytest
import torch

from fleetune.models import device_memory
from fleetune.models.device_memory import PeakMemory, code_bytes, compute_on, held_bytes, outside_bytes

GB = 10**9
SECOND = torch.device("cuda:1")


class Gpu:
    """A GPU of 80 GB: 30 GB are in use, of which NVML gives this process 5; its tensors take 3 of reserved 4."""

    def __init__(self) -> None:
        self.processes = {os.getpid(): 5 * GB, 1: 25 * GB}
        self.said: list[object] = []
        self.asked = 0
        self.integrated = False

    def running(self, handle: object) -> list[SimpleNamespace]:
        """As NVML lists processes."""
        self.asked += 1
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.processes.items()]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """Stand-ins of torch's functions and NVML's."""
    found = Gpu()
    nvml = SimpleNamespace(nvmlDeviceGetComputeRunningProcesses=found.running)
    # private: it is kept until the process ends, and the next test would find this one's
    monkeypatch.setattr(device_memory, "_nvml_handle", lambda device: (nvml, device))
    stand_ins = {
        "set_device": lambda device: found.said.append(device),
        "get_device_properties": lambda device: SimpleNamespace(total_memory=80 * GB, is_integrated=found.integrated),
        "set_per_process_memory_fraction": lambda share, device: found.said.append((share, device)),
        "mem_get_info": lambda device: (50 * GB, 80 * GB),
        "memory_reserved": lambda device: 4 * GB,
        "memory_allocated": lambda device: 3 * GB,
        "max_memory_allocated": lambda device: 6 * GB,
    }
    for name, function in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, function)
    return found


def test_a_process_holds_its_tensors_and_its_context(gpu: Gpu) -> None:
    """Outside of torch's allocator there is 1 of the 5 GB; what the allocator keeps for later does not count."""
    assert outside_bytes(SECOND) == code_bytes(SECOND) == 1 * GB
    assert held_bytes(SECOND) == 4 * GB


def test_where_nvml_does_not_know_a_process_all_that_is_in_use_counts(gpu: Gpu) -> None:
    """As in a container, whose process ids are its own, and without NVML: but no more than a context can be.

    Bug: two workers shared a GPU, and one that came back was left nothing of its share beside the other's tensors.
    """
    del gpu.processes[os.getpid()]
    assert outside_bytes(SECOND) == 2 << 30
    compute_on(SECOND, 40 * GB)
    assert gpu.said[-1] == ((40 * GB - (2 << 30)) / (80 * GB), SECOND)


def test_the_peak_has_the_context_and_reads_it_only_while_it_may_grow(gpu: Gpu) -> None:
    """NVML is asked in three rounds, and then seldom, and the largest context counts."""
    peak = PeakMemory(SECOND)
    assert peak.bytes() == 7 * GB
    gpu.processes[os.getpid()] = 6 * GB
    assert [peak.bytes() for _ in range(4)] == [8 * GB] * 4
    assert gpu.asked == 3
    gpu.processes[os.getpid()] = 7 * GB
    assert [peak.bytes() for _ in range(100)][-1] == 9 * GB and gpu.asked == 4


def test_a_worker_computes_on_its_own_gpu_and_takes_no_more_than_its_share(gpu: Gpu) -> None:
    """Bug: on a machine's second GPU random seeds, waits and page-locked memory concerned the first."""
    compute_on(SECOND, 41 * GB)
    assert gpu.said == [SECOND, (0.5, SECOND)]
    compute_on(SECOND, 80 * GB)
    gpu.integrated = True
    compute_on(SECOND, 41 * GB)
    assert gpu.said == [SECOND, (0.5, SECOND), SECOND, SECOND], "nothing is left to others, or the kernel limits"


def test_on_cpus_nothing_is_set_and_memory_is_that_of_the_process() -> None:
    """The kernel tells it."""
    device = torch.device("cpu")
    compute_on(device, 1)
    assert held_bytes(device) <= PeakMemory(device).bytes()
    assert 0 < code_bytes(device) < held_bytes(device)
