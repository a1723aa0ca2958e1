"""The instruments of the benchmark `runtime`: turns of processes, memory meters and transfers."""

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.runtime.metering import Stopwatch, Turn, UsageMeter
from benchmarks.runtime.transfers import transfer_costs


def happens(child: subprocess.Popen[bytes], change: int) -> bool:
    """Wait until the child stops or continues."""
    return os.waitid(os.P_PID, child.pid, change) is not None


def test_a_process_works_only_in_its_turn() -> None:
    """A process is stopped between turns, and each turn is recorded."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        watch = Stopwatch(child.pid)
        turns: list[Turn] = []
        assert watch.stop() is None, "a turn whose beginning nobody saw is not counted"
        assert happens(child, os.WSTOPPED)
        with watch.turn(turns):
            assert happens(child, os.WCONTINUED)
        assert happens(child, os.WSTOPPED)
        assert len(turns) == 1 and turns[0].wall_s > 0 and turns[0].cpu_s >= 0
    finally:
        child.kill()
        child.communicate()


def test_a_meter_sees_memory_that_is_free_again() -> None:
    """The peak counts memory that was freed before the reading."""
    meter = UsageMeter()
    held = bytearray(b"1" * (32 << 20))
    del held
    used = meter.read()
    assert used.peak_bytes >= 32 << 20
    assert used.cpu_s >= 0


def test_tensors_travel_both_ways_of_sending(tmp_path: Path) -> None:
    """Two processes send tensors both ways, and every figure has a value."""
    figures = {figure.name: figure for figure in transfer_costs(tmp_path, repeats=1)}
    assert list(figures) == ["copies_send", "copies_receive", "cpu_send", "cpu_receive", "control_round_trip"]
    assert all(figure.value is not None for figure in figures.values())
    assert figures["copies_send"].ok and figures["copies_receive"].ok
