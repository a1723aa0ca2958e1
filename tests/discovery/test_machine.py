"""Facts that an agent reports about its machine, and load by other programs, from the kernel's counters."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fleetune.discovery.machine import LoadSample, MachineLoad, inspect_machine, load_between, sample_load


def test_limits_never_exceed_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits never exceed the machine; only containers report an image."""
    monkeypatch.delenv("FLEETUNE_IMAGE", raising=False)
    found = inspect_machine("cpu")
    assert 0 < found.cores <= found.machine_cores == len(os.sched_getaffinity(0))
    assert 0 < found.memory_bytes <= found.machine_memory_bytes
    assert (found.image, found.accelerators) == ("", ())
    monkeypatch.setenv("FLEETUNE_IMAGE", "sha256:7")
    assert inspect_machine("cpu").image == "sha256:7"


START = LoadSample(machine="m", cores=2, at_s=10.0, busy_s=100.0, stolen_s=0.0, own_s=1.0, waited_s=0.5)


def later(
    sample: LoadSample, *, busy_s: float, own_s: float, waited_s: float | None, stolen_s: float = 0.0
) -> LoadSample:
    """The sample of two seconds later, with these increments."""
    return replace(
        sample,
        at_s=sample.at_s + 2,
        busy_s=sample.busy_s + busy_s,
        stolen_s=sample.stolen_s + stolen_s,
        own_s=sample.own_s + own_s,
        waited_s=None if waited_s is None or sample.waited_s is None else sample.waited_s + waited_s,
    )


def test_the_work_of_the_observed_processes_is_not_that_of_others() -> None:
    """Of 3.4 processor seconds in 2 s, two processes of ours used 0.6; they waited 0.5 s; one elsewhere counts not."""
    before = {"a": START, "b": START, "far": replace(START, machine="n", busy_s=0.0)}
    after = {
        "a": later(START, busy_s=3.4, own_s=0.4, waited_s=0.3),
        "b": later(START, busy_s=3.4, own_s=0.2, waited_s=0.2),
        "far": later(before["far"], busy_s=4.0, own_s=0.0, waited_s=2.0),
    }
    assert load_between(before, after, "m") == MachineLoad(cores=2, other_cores=pytest.approx(1.4), waiting=0.25)
    assert load_between(before, after, "n") == MachineLoad(cores=2, other_cores=2.0, waiting=1.0)


def test_what_a_hypervisor_takes_delays_too() -> None:
    """A second stolen from two cores in 2 s is a wait of a quarter of the time, and work of others."""
    after = {"a": later(START, busy_s=1.0, stolen_s=1.0, own_s=0.0, waited_s=0.0)}
    assert load_between({"a": START}, after, "m") == MachineLoad(cores=2, other_cores=0.5, waiting=0.25)


def test_without_counters_of_waits_cores_are_shared_fairly() -> None:
    """If the kernel does not count waits, others that use 1.5 of 2 cores delay as much as their share."""
    before = {"a": replace(START, waited_s=None)}
    after = {"a": later(before["a"], busy_s=3.5, own_s=0.5, waited_s=None)}
    assert load_between(before, after, "m").waiting == pytest.approx(0.75)


def test_counters_that_do_not_exist_are_zero(tmp_path: Path) -> None:
    """A system without /proc gives a sample, from which no load follows."""
    sample = sample_load(tmp_path / "stat", tmp_path / "task")
    assert (sample.busy_s, sample.stolen_s, sample.waited_s) == (0.0, 0.0, None)
    assert load_between({"a": sample}, {"a": sample}, sample.machine).waiting == 0.0


def test_only_the_cores_that_may_be_used_count(tmp_path: Path) -> None:
    """The work on other cores of a machine does not disturb a process that may not use them."""
    usable = sorted(os.sched_getaffinity(0))
    lines = [f"cpu{number} 100 0 100 900 50 0 0 100 70 0" for number in usable]
    (tmp_path / "stat").write_text(
        "\n".join(["cpu  9 9 9 9 9 9 9 9", *lines, "cpu9999 800 0 0 0 0 0 0 0 0 0", "ctxt 1"])
    )
    sample = sample_load(tmp_path / "stat")
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    assert sample.busy_s == pytest.approx(len(usable) * 300 / ticks_per_s)
    assert sample.stolen_s == pytest.approx(len(usable) * 100 / ticks_per_s)


def test_a_busy_program_is_seen() -> None:
    """Programs that keep every core busy for a second are counted as others, our own work is not."""
    loop = "import time; end = time.monotonic() + 1\nwhile time.monotonic() < end: pass"
    before = {"a": sample_load()}
    programs = [subprocess.Popen([sys.executable, "-c", loop]) for _ in os.sched_getaffinity(0)]
    for program in programs:
        program.wait()
    load = load_between(before, {"a": sample_load()}, before["a"].machine)
    assert load.other_cores > 0.5 * load.cores
