"""Memory limits of processes that emulate devices, by polling and by control groups."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from fleetune.contracts.fleet import Device, Fleet, Link
from fleetune.contracts.fleet_request import DeviceRequest, Emulate, FleetRequest
from fleetune.contracts.task import ignore_progress
from fleetune.discovery.discover import discover
from fleetune.errors import Infeasible
from fleetune.launching import Command, ProcessLauncher, describe_used_memory, open_sites
from fleetune.launching.placement import FleetPlacement
from fleetune.launching.process_limits import is_out_of_memory, limit_memory

LIMIT_BYTES = 80 << 20
GROUP_BYTES = 64 << 20
ALL_AT_ONCE = f"held = bytearray({4 * GROUP_BYTES}); held[::4096] = b'1' * len(held[::4096]); print(len(held))"
PATIENCE_S = 60.0
BIT_BY_BIT = """
import time
held = []
while True:
    held.append(b"1" * (1 << 20))
    print(len(held), flush=True)
    time.sleep(0.001)
"""
AT_ONCE = """
import sys
from fleetune.launching.process_limits import OUT_OF_MEMORY_EXIT_CODE, is_out_of_memory
try:
    bytearray(20 << 30)
except Exception as error:
    sys.exit(OUT_OF_MEMORY_EXIT_CODE if is_out_of_memory(error) else 1)
"""


def job(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch, memory_bytes: int | None = LIMIT_BYTES) -> object:
    """Start a script as a child with a memory limit."""
    monkeypatch.setenv("PYTHONPATH", str(folder))
    (folder / "script.py").write_text(script)
    return ProcessLauncher(memory_bytes).start(Command(module="script", log=folder / "log"))


def test_a_process_that_grows_beyond_its_limit_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that exceeds its limit in small steps is killed, and its peak memory is known.

    Bug: no limit was enforced, and a profile with 0.6 GB used 20.9 GB until the machine's OOM killer came.
    """
    bound = job(BIT_BY_BIT, tmp_path, monkeypatch)
    try:
        assert bound.wait(PATIENCE_S) == -9
        assert bound.out_of_memory and bound.used_bytes >= LIMIT_BYTES
        assert describe_used_memory(bound).endswith("GB used)")
        assert max(map(int, bound.lines())) < 10 * LIMIT_BYTES >> 20, "the watchdog polled too rarely"
    finally:
        bound.stop(0)


def test_a_huge_allocation_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel refuses an allocation of 20 GB, and the exit code of the process says so."""
    bound = job(AT_ONCE, tmp_path, monkeypatch)
    try:
        assert bound.wait(PATIENCE_S) == 137 and bound.out_of_memory
        assert bound.used_bytes < LIMIT_BYTES
    finally:
        bound.stop(0)


def test_a_process_within_its_limit_keeps_its_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another failure does not count as out of memory, with or without a limit."""
    for memory_bytes in (LIMIT_BYTES, None):
        free = job("import sys; sys.exit(3)", tmp_path, monkeypatch, memory_bytes)
        try:
            assert free.wait(PATIENCE_S) == 3 and not free.out_of_memory
        finally:
            free.stop(0)


@pytest.mark.parametrize(
    ("error", "lack"),
    [
        (MemoryError(), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."), True),
        (OSError(12, "Cannot allocate memory"), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 1 GiB"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("shapes differ"), False),
    ],
)
def test_out_of_memory_errors_are_recognised(error: Exception, lack: bool) -> None:
    """Errors of Python, torch, the kernel and a GPU for lack of memory are recognised.

    Bug: those of a GPU were told as errors of the program, with an advice to run it again.
    """
    assert is_out_of_memory(error) == lack


def test_only_processes_of_emulated_devices_get_a_limit() -> None:
    """Only processes of devices with an emulated memory get a limit, in both kinds of placement."""
    names = ("own", "held")
    request = FleetRequest(
        devices=(
            DeviceRequest(name="own", accelerator="cpu"),
            DeviceRequest(name="held", accelerator="cpu", emulate=Emulate(memory_bytes=7)),
        )
    )
    fleet = Fleet(
        devices=tuple(
            Device(name=name, memory_bytes=7, cores=1.0, fingerprint="f", emulated=name == "held") for name in names
        ),
        links=tuple(Link(source=a, target=b, latency_s=0, bytes_per_s=1) for a in names for b in names if a != b),
    )
    for placement in (FleetPlacement.from_request(request), FleetPlacement.from_fleet(fleet)):
        assert placement.process_memory_bytes == {"held": 7}


def test_an_agent_within_too_little_is_stopped_in_one_sentence() -> None:
    """The memory limit of a fleet file binds discovery agents, and the error names used and allowed memory."""
    tiny = DeviceRequest(name="desk", accelerator="cpu", emulate=Emulate(memory_bytes=10**6))
    request = FleetRequest(devices=(tiny,))
    words = r"device desk: its discovery agent ran out of its 0.00 GB \(0.\d\d GB used\); give it more by emulate"
    with open_sites(FleetPlacement.from_request(request), print) as sites, pytest.raises(Infeasible, match=words):
        discover(request, sites, ignore_progress, lambda _: None)


def v1(folder: Path, group: str = "/shop/desk") -> tuple[Path, Path, Path]:
    """Make the tree of version 1; returns membership file, mount and the process's own group."""
    (folder / "membership").write_text(f"9:name=systemd:/\n4:memory:{group}\n1:cpu:/\n0::/\n")
    own = folder / "mount" / "memory" / group.lstrip("/")
    own.mkdir(parents=True)
    return folder / "membership", folder / "mount", own


def v2(folder: Path, enabled: str) -> tuple[Path, Path, Path]:
    """Make the tree of version 2 with these controllers enabled for children; returns the same as `v1`."""
    (folder / "membership").write_text("0::/shop/desk\n")
    own = folder / "mount" / "shop" / "desk"
    own.mkdir(parents=True)
    (own / "cgroup.subtree_control").write_text(enabled)
    return folder / "membership", folder / "mount", own


def test_a_group_of_version_1_holds_the_process(tmp_path: Path) -> None:
    """A group of version 1 gets the limit and the process, and reports OOM kills and peak memory."""
    membership, mount, own = v1(tmp_path)
    group = limit_memory(77, GROUP_BYTES, membership, mount)
    assert group is not None
    made = own / f"fleetune-{os.getpid()}-77"
    assert (made / "memory.limit_in_bytes").read_text() == str(GROUP_BYTES)
    assert (made / "cgroup.procs").read_text() == "77"
    assert not group.oom_killed and group.peak_bytes == 0
    (made / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    (made / "memory.max_usage_in_bytes").write_text(f"{GROUP_BYTES}\n")
    assert group.oom_killed and group.peak_bytes == GROUP_BYTES


def test_a_limit_within_a_page_is_rounded_up(tmp_path: Path) -> None:
    """The kernel would round 2 GB down, and a device that asked for 2 GB would find less and be refused."""
    membership, mount, own = v1(tmp_path)
    limit_memory(77, 2_000_000_000, membership, mount)
    limit = int((own / f"fleetune-{os.getpid()}-77" / "memory.limit_in_bytes").read_text())
    assert 0 <= limit - 2_000_000_000 < resource.getpagesize() and limit % resource.getpagesize() == 0


def test_a_group_of_version_2_needs_the_controller_for_its_children(tmp_path: Path) -> None:
    """`limit_memory` makes no group where the memory controller is not enabled for children."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    membership, mount, own = v2(tmp_path / "a", "cpu memory\n")
    assert limit_memory(77, GROUP_BYTES, membership, mount) is not None
    assert (own / f"fleetune-{os.getpid()}-77" / "memory.max").read_text() == str(GROUP_BYTES)
    membership, mount, own = v2(tmp_path / "b", "cpu\n")
    assert limit_memory(77, GROUP_BYTES, membership, mount) is None
    assert [path.name for path in own.iterdir()] == ["cgroup.subtree_control"]


def test_without_groups_nothing_is_made(tmp_path: Path) -> None:
    """Nothing is made on a machine without control groups or without their mount."""
    assert limit_memory(77, GROUP_BYTES, tmp_path / "none", tmp_path) is None
    membership, mount, own = v1(tmp_path)
    own.rmdir()
    assert limit_memory(77, GROUP_BYTES, membership, mount) is None


def test_groups_of_makers_that_are_gone_are_swept(tmp_path: Path) -> None:
    """Empty groups of makers that were killed are removed, those of living makers stay."""
    membership, mount, own = v1(tmp_path)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left, living = own / f"fleetune-{ended.pid}-5", own / f"fleetune-{os.getpid()}-5"
    left.mkdir()
    living.mkdir()
    limit_memory(77, GROUP_BYTES, membership, mount)
    assert not left.exists() and living.exists()


def test_the_kernel_ends_what_takes_too_much_at_once() -> None:
    """In a control group the kernel kills a process at the first page beyond its limit, which polling could miss.

    Where no group can be made `limit_memory` returns None, and only the watchdog remains.
    """
    script = ["-c", f"import sys; sys.stdin.readline(); {ALL_AT_ONCE}"]
    child = subprocess.Popen([sys.executable, *script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    group = limit_memory(child.pid, GROUP_BYTES)
    told, _ = child.communicate(b"\n", timeout=60)
    if group is None:
        assert child.returncode == 0 and int(told) == 4 * GROUP_BYTES
        return
    assert child.returncode == -9 and group.oom_killed
    assert group.peak_bytes == pytest.approx(GROUP_BYTES, rel=0.1)
    assert group.remove()
