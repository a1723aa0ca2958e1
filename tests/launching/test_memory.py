"""An emulated device's memory binds its processes."""

from pathlib import Path

import pytest

from fleetune.contracts.fleet import Device, Fleet, Link
from fleetune.contracts.fleet_request import DeviceRequest, Emulate, FleetRequest
from fleetune.contracts.task import quiet
from fleetune.discovery import discover
from fleetune.errors import Infeasible
from fleetune.launching import Command, ProcessLauncher, used_in_words
from fleetune.launching.memory import refused_memory
from fleetune.launching.opening import open_sites
from fleetune.launching.quarters import asked, found

LIMIT_BYTES = 80 << 20
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
from fleetune.launching.memory import RAN_OUT, refused_memory
try:
    bytearray(20 << 30)
except Exception as error:
    sys.exit(RAN_OUT if refused_memory(error) else 1)
"""


def job(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch, memory_bytes: int | None = LIMIT_BYTES) -> object:
    """A script as a bound child."""
    monkeypatch.setenv("PYTHONPATH", str(folder))
    (folder / "script.py").write_text(script)
    return ProcessLauncher(memory_bytes).start(Command(module="script", log=folder / "log"))


def test_a_process_that_takes_too_much_bit_by_bit_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile with 0.6 GB used 20.9 GB and woke the machine's OOM killer: nothing held a process to its limit. Now it
    is killed beyond it, and what it had used is known."""
    bound = job(BIT_BY_BIT, tmp_path, monkeypatch)
    try:
        assert bound.wait(PATIENCE_S) == -9
        assert bound.out_of_memory and bound.used_bytes >= LIMIT_BYTES
        assert used_in_words(bound).endswith("GB used)")
        assert max(map(int, bound.lines())) < 10 * LIMIT_BYTES >> 20, "nobody looked for long"
    finally:
        bound.stop(0)


def test_what_would_take_far_too_much_at_once_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """20 GB in one allocation never come to be: the kernel says no, and the process that it ran out."""
    bound = job(AT_ONCE, tmp_path, monkeypatch)
    try:
        assert bound.wait(PATIENCE_S) == 137 and bound.out_of_memory
        assert bound.used_bytes < LIMIT_BYTES
    finally:
        bound.stop(0)


def test_what_stays_within_ends_as_it_likes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure of its own is no lack of memory, bound or not."""
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
        (RuntimeError("shapes differ"), False),
    ],
)
def test_a_lack_of_memory_is_told_by_its_words(error: Exception, lack: bool) -> None:
    """Python's, torch's and the kernel's."""
    assert refused_memory(error) == lack


def test_processes_of_emulated_devices_are_bound_and_no_others() -> None:
    """As asked for, and as found: a share of the machine's memory that nobody asked for binds nothing."""
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
    for grounds in (asked(request), found(fleet)):
        assert grounds.process_limits == {"held": 7}


def test_an_agent_within_too_little_is_stopped_in_one_sentence() -> None:
    """The limit of the fleet file reaches the agents: who has 1 MB is told what was used and allowed."""
    tiny = DeviceRequest(name="desk", accelerator="cpu", emulate=Emulate(memory_bytes=10**6))
    request = FleetRequest(devices=(tiny,))
    words = r"device desk: its discovery agent ran out of its 0.00 GB \(0.\d\d GB used\); give it more by emulate"
    with open_sites(asked(request), print) as sites, pytest.raises(Infeasible, match=words):
        discover(request, sites, quiet, lambda _: None)
