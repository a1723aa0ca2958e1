"""Discovery with real agents."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from fleetune.contracts.fleet import DOCKER, Fleet, NetworkSpec
from fleetune.contracts.fleet_request import DeviceRequest, Emulate, FleetRequest
from fleetune.contracts.task import ignore_progress
from fleetune.discovery import agent_pool
from fleetune.discovery.agent_pool import DiscoveryTimeLimits
from fleetune.discovery.discover import discover
from fleetune.discovery.hysteresis import Verdict, judge
from fleetune.discovery.machine import MachineLoad
from fleetune.discovery.measurement import LinkEvidence, Measurement
from fleetune.errors import Infeasible, Refused, TryAgain
from fleetune.launching import Command, Job, ListenSettings, LocalSites, ProcessLauncher
from fleetune.launching.process_limits import OUT_OF_MEMORY_EXIT_CODE

TWO = FleetRequest(devices=(DeviceRequest(name="a", accelerator="cpu"), DeviceRequest(name="b", accelerator="cpu")))


class Watched:
    """Launcher that records its jobs, and can start another module in place of an agent."""

    def __init__(self, instead: dict[int, str] | None = None) -> None:
        self.jobs: list[Job] = []
        self.limited: list[int] = []
        """Process ids of the jobs whose processors were limited."""
        self._instead = instead or {}

    def start(self, command: Command) -> Job:
        """Start the agent or its substitute."""
        module = self._instead.get(len(self.jobs), command.module)
        swapped = Command(module=module, first_line=command.first_line, log=command.log)
        self.jobs.append(WatchedJob(ProcessLauncher().start(swapped), self.limited))
        return self.jobs[-1]


class WatchedJob:
    """A job that notes when its processor is limited."""

    def __init__(self, job: Job, limited: list[int]) -> None:
        self._job, self._limited = job, limited

    def __getattr__(self, name: str) -> Any:
        return getattr(self._job, name)

    def limit_cpu(self) -> None:
        """As in Job."""
        self._limited.append(self.pid)
        self._job.limit_cpu()


@pytest.fixture
def launcher() -> Iterator[Watched]:
    """Launcher whose agents must all have ended after the test."""
    watched = Watched()
    yield watched
    assert watched.jobs
    assert [job.poll() is not None for job in watched.jobs] == [True] * len(watched.jobs)


def test_two_devices_and_their_links(launcher: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts and links of two agents on this machine are plausible, and progress is reported."""
    monkeypatch.setattr(agent_pool, "SHUTDOWN_S", 300.0)
    told: list[tuple[str, float, float]] = []
    notes: list[str] = []
    fleet = discover(
        TWO, LocalSites(launcher), lambda what, done, total, unit="": told.append((what, done, total)), notes.append
    ).fleet
    assert [device.name for device in fleet.devices] == ["a", "b"]
    assert fleet.devices[0].fingerprint == fleet.devices[1].fingerprint
    assert sum(device.memory_bytes for device in fleet.devices) <= psutil.virtual_memory().total
    for link in fleet.links:
        assert link.latency_s < 0.1 and 1e6 < link.bytes_per_s < 1e11
    for device in fleet.devices:
        assert 1e-11 < device.link_cpu_s_per_byte < 1e-7, "encryption is neither free nor slower than any link"
    assert told[0] == ("finding devices", 0, 2) and told[-1] == ("measuring links", 2, 2)
    assert [job.poll() for job in launcher.jobs] == [0, 0]


class Far(LocalSites):
    """Sites that delay messages from a to b."""

    def listen_settings(self, device: str) -> ListenSettings:
        """Delay messages at b only."""
        return ListenSettings(delays_s={"a": 0.02} if device == "b" else {})


def test_emulated_links_are_compared_with_what_was_asked(launcher: Watched) -> None:
    """A delay is measured in its direction only; deviating links are probed again and noted.

    Every job is limited once, after all agents have answered; the fleet keeps the requested links.
    """
    devices = tuple(DeviceRequest(name=name, accelerator="cpu", launcher=DOCKER) for name in "ab")
    request = FleetRequest(devices=devices, links=NetworkSpec(mbit_per_s=1e-3), image="own")
    notes: list[str] = []
    fleet = discover(request, Far(launcher), ignore_progress, notes.append, DiscoveryTimeLimits(probe_s=0.1)).fleet
    there, back = fleet.link("a", "b"), fleet.link("b", "a")
    assert 0.01 < there.latency_s and back.latency_s < there.latency_s - 0.01
    off = [note for note in notes if "asked 0.001 Mbit/s and 0 ms, measured" in note]
    assert [note.split(":")[0] for note in off] == ["link a -> b", "link b -> a"]
    assert sorted(launcher.limited) == sorted(job.pid for job in launcher.jobs)
    assert (fleet.emulated_links, fleet.image, fleet.engines) == (request.links, "own", ())
    assert [device.launcher for device in fleet.devices] == [DOCKER, DOCKER]


ATTEMPTS, EVEN = 4, 1.5
"""How often a machine of uneven pace is given another chance, and the ratio of paces that is even."""
BY_OTHERS = ("while other programs used", "but not in every probe")


def test_a_machine_that_others_keep_busy_keeps_the_stored_fleet() -> None:
    """Real links beside two programs on every core, three times as slow as in the stored fleet, are never believed, be
    it that others' programs are seen, or that a probe escaped them.

    Were it not for the load, the second measurement would be. A machine that becomes slower or faster itself meanwhile
    is another one: all begins again.
    """
    for _ in range(ATTEMPTS):
        before_s = pace_s()
        verdicts = judged_beside_programs()
        if max(before_s, pace_s()) < EVEN * min(before_s, pace_s()):
            break
    for verdict in verdicts:
        assert verdict.keep and (not verdict.why or any(cause in verdict.why for cause in BY_OTHERS)), verdict.why


def pace_s() -> float:
    """Return the processor time of a fixed piece of work, at its quickest."""

    def work_s() -> float:
        began_s = time.thread_time()
        assert sum(number * number for number in range(200_000)) > 0
        return time.thread_time() - began_s

    return min(work_s() for _ in range(5))


def judged_beside_programs() -> list[Verdict]:
    """Measure links beside two programs on every core, three times; return what is said of a faster stored fleet."""
    found = discover(TWO, LocalSites(), ignore_progress, lambda _: None).fleet
    links = (replace(link, latency_s=link.latency_s + 0.005, bytes_per_s=link.bytes_per_s / 3) for link in found.links)
    slow = replace(found, links=tuple(links))
    fast = replace(
        found, links=tuple(replace(link, latency_s=0.0, bytes_per_s=3 * link.bytes_per_s) for link in found.links)
    )
    before = calm(slow)
    assert not judge(fast, before, before, 0.1).keep
    loop = "while True: pass"
    programs = [subprocess.Popen([sys.executable, "-c", loop]) for _ in 2 * [*os.sched_getaffinity(0)]]
    verdicts = []
    try:
        for _ in range(3):
            seen = discover(TWO, LocalSites(), ignore_progress, lambda _: None, stored=fast)
            assert all(evidence.load.other_cores > 0.5 for evidence in seen.links)
            verdicts.append(judge(fast, seen, before, 0.1))
            before = seen
        return verdicts
    finally:
        for program in programs:
            program.kill()
            program.wait()


def calm(fleet: Fleet) -> Measurement:
    """The measurement of a fleet on a machine without other programs."""
    free = MachineLoad(cores=2, other_cores=0.0, waiting=0.0)
    return Measurement(
        fleet=fleet,
        links=tuple(LinkEvidence(source=link.source, target=link.target, lines=(), load=free) for link in fleet.links),
    )


def test_an_agent_without_memory_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that ran out of memory raises Infeasible with advice."""
    (tmp_path / "needs_more.py").write_text(f"raise SystemExit({OUT_OF_MEMORY_EXIT_CODE})")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    launcher = Watched({0: "needs_more"})
    request = FleetRequest(devices=(DeviceRequest(name="tiny"),))
    with pytest.raises(Infeasible, match="device tiny: its discovery agent ran out of the device's memory"):
        discover(request, LocalSites(launcher), ignore_progress, lambda _: None)


def test_one_device_has_no_links(launcher: Watched) -> None:
    """A fleet of one is found without any probing."""
    request = FleetRequest(devices=(DeviceRequest(name="only", accelerator="cpu", emulate=Emulate(memory_bytes=1000)),))
    fleet = discover(request, LocalSites(launcher), ignore_progress, lambda _: None).fleet
    assert (fleet.links, fleet.devices[0].memory_bytes, fleet.devices[0].emulated) == ((), 1000, True)


def test_a_quota_above_the_machine_is_refused_and_all_agents_end(launcher: Watched) -> None:
    """An impossible request is refused and leaves no agent running."""
    request = FleetRequest(devices=(DeviceRequest(name="a", accelerator="cpu", emulate=Emulate(cores=1e6)),))
    with pytest.raises(Refused, match="device a: emulate.cores is 1000000 but its machine has"):
        discover(request, LocalSites(launcher), ignore_progress, lambda _: None)


def test_an_agent_that_dies_is_named_with_its_last_words() -> None:
    """TryAgain names the device, exit code and last words of an agent that died, and its log is noted."""
    launcher = Watched({1: "no_such_module_at_all"})
    notes: list[str] = []
    with pytest.raises(TryAgain, match="device b: .* ended with exit code 1.*No module named no_such_module_at_all"):
        discover(TWO, LocalSites(launcher), ignore_progress, notes.append)
    assert any(note.startswith("end of the log of device b:\n") for note in notes)
    assert all(job.poll() is not None for job in launcher.jobs)


def test_an_agent_that_says_nothing_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that does not answer in time is named, and its agent is ended."""
    (tmp_path / "silent.py").write_text("import signal; signal.pause()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    launcher = Watched({0: "silent"})
    request = FleetRequest(devices=(DeviceRequest(name="mute"),))
    with pytest.raises(
        TryAgain, match="device mute: its discovery agent fell silent: it did not say 'here' within 0.2 s"
    ):
        discover(request, LocalSites(launcher), ignore_progress, lambda _: None, DiscoveryTimeLimits(answer_s=0.2))
    assert all(job.poll() is not None for job in launcher.jobs)
