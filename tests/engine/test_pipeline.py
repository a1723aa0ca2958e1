"""The whole pipeline on containers, here and on another engine, and what is left when it breaks."""

import dataclasses
import os
import select
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from fleetune.contracts import json_io
from fleetune.contracts.metrics import TrainingMetrics
from fleetune.contracts.plan import PlanResult
from fleetune.contracts.profile import Profile
from fleetune.discovery.measurement import link_matches
from fleetune.errors import Infeasible
from fleetune.launching.docker.sites import DockerSites
from fleetune.launching.placement import FleetPlacement
from fleetune.training import coordinator
from fleetune.training.task import TrainingTask
from tests.support.engine.pipelines import config, configured, fleet_of, run
from tests.support.engine.places import ignored
from tests.support.engine.second_engine import Second
from tests.support.flows.service.client import command_of

EDGE = Path(__file__).parents[2] / "configs" / "runs" / "edge-docker.yaml"
ATTEMPTS = 4
REAPER = "fleetune.launching.docker.cleanup"


@pytest.mark.measures
def test_links_between_containers_come_out_as_asked(tmp_path: Path) -> None:
    """Every link of a discovered fleet has, by its measurement, the rate and latency that the run file asks for.

    A machine whose host is busy for a moment makes a link slow once, a wrong shape does so in each discovery.
    """
    missed: set[tuple[str, str]] | None = None
    for attempt in range(ATTEMPTS):
        fleet = fleet_of(run(config(tmp_path), tmp_path / str(attempt), until="discover"))
        asked = fleet.emulated_links
        assert asked is not None and fleet.links
        off = {(x.source, x.target) for x in fleet.links if not link_matches(asked.link(x.source, x.target), x)}
        missed = off if missed is None else missed & off
        if not missed:
            break
    assert missed == set()


def test_a_run_in_containers_and_what_a_second_one_keeps(tmp_path: Path) -> None:
    """Every stage ends well and both devices train, in containers; with a new device it is the only one that is
    profiled."""
    first = run(config(tmp_path), tmp_path / "store")
    assert all(device.launcher == "docker" for device in fleet_of(first).devices)
    metrics = first.store.folder("metrics", first.record.outputs["metrics"]) / "training.json"
    trained = json_io.read(TrainingMetrics, metrics)
    assert len(trained.rounds) == 6 and {each.device for each in trained.busy_s} == {"desk", "nano"}
    assert first.record.stage("evaluate").state == "done"
    second = run(config(tmp_path, count=3), tmp_path / "store", until="profile")
    said = " ".join(event.text for event in second.events if event.stage == "profile" and event.kind == "note")
    assert "desk: times of" in said and "nano: times of" in said and "shed: times of" not in said


def test_a_device_that_runs_out_of_memory_is_named(store_root: Path, tmp_path: Path) -> None:
    """The engine says that a container hit its limit; the sentence says which device, of what, and what it needs."""
    told = run(config(tmp_path), store_root, until="plan")
    folder = {kind: told.store.folder(kind, digest) for kind, digest in told.record.outputs.items()}
    whole = fleet_of(told)
    small = tuple(dataclasses.replace(each, memory_bytes=96 << 20) for each in whole.devices)
    fleet = dataclasses.replace(whole, devices=(small[0], *whole.devices[1:]))
    given = configured(told)
    with (
        DockerSites(FleetPlacement.from_fleet(fleet), ignored) as sites,
        pytest.raises(Infeasible, match=r"device desk ran out of its 0\.10 GB while training main/\d: .* needs 0\."),
    ):
        coordinator.train(
            TrainingTask(
                plan=json_io.read(PlanResult, folder["plan"] / "plan.json"),
                fleet=fleet,
                profile=json_io.read(Profile, folder["profile"] / "profile.json"),
                model_folder=folder["model"],
                data_folder=folder["data"],
                model=given.model,
                training=given.training,
                seed=3,
                work=tmp_path / "work",
                output=tmp_path / "output",
                sites=sites,
            )
        )


def test_a_killed_run_leaves_nothing(store_root: Path, tmp_path: Path) -> None:
    """kill -9 of the flow in the middle of training: no container, network or process stays; the next run works."""
    path = config(tmp_path)
    arguments = ["run", str(path), "--root", str(store_root), "--set", "training.rounds=400"]
    flow = subprocess.Popen(
        [sys.executable, "-c", "from flows.cli import main; main()", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with ExitStack() as stack:
        stack.callback(flow.wait)
        stack.callback(flow.kill)
        _until_trained(store_root, flow)
        reapers = [each.pid for each in _below(flow.pid) if REAPER in command_of(each)]
        handles = [os.pidfd_open(pid) for pid in reapers]
        assert handles
        flow.send_signal(signal.SIGKILL)
        for handle in handles:
            assert select.select([handle], [], [], 60)[0]
            os.close(handle)
    assert run(path, store_root, until="profile").record.state == "done"


def test_the_edge_fleet_in_a_small_form(tmp_path: Path) -> None:
    """The run file that comes with the project: four uneven containers, planned by search, every stage to its end.

    Short texts and few of them: what is computed with 1.6 cores takes the others' time.
    """
    mounted = ("fleet.image=fleetune-mounted", "stages.image=fleetune-mounted")
    small = ("training.rounds=2", "data.max_length=12", "data.train_samples=128", "data.test_samples=32")
    told = run(EDGE, tmp_path / "store", *small, *mounted)
    assert {stage.state for stage in told.record.stages} == {"done"}
    assert len(fleet_of(told).devices) == 4
    plan = json_io.read(PlanResult, told.store.folder("plan", told.record.outputs["plan"]) / "plan.json")
    assert plan.plan.strategy == "asteroid"


@pytest.mark.image("train")
def test_two_engines_train_together(tmp_path: Path, second: Second) -> None:
    """A device of this machine's engine and one of another, over mutual TLS: inputs are carried there, and what it
    has trained comes back."""
    second.load("fleetune-train")
    engine = {"name": "garage", **{key: getattr(second.engine, key) for key in ("address", "tls", "reach")}}
    fleet = {
        "image": "fleetune-train",
        "engines": [engine],
        "devices": [
            {"name": "desk", "launcher": "docker", "accelerator": "cpu", "emulate": {"cores": 0.6}},
            {"name": "far", "launcher": "docker", "engine": "garage", "accelerator": "cpu", "emulate": {"cores": 0.6}},
        ],
    }
    told = run(config(tmp_path, fleet=fleet), tmp_path / "store", until="train")
    assert {device.name: device.engine for device in fleet_of(told).devices} == {"desk": "local", "far": "garage"}
    checkpoint = told.store.folder("checkpoint", told.record.outputs["checkpoint"])
    assert {path.name for path in (checkpoint / "state").glob("*.safetensors")} == {
        "segment-0.safetensors",
        "segment-1.safetensors",
    }


def _below(process: int) -> list[psutil.Process]:
    return psutil.Process(process).children(recursive=True)


def _until_trained(root: Path, flow: subprocess.Popen[bytes]) -> None:
    """Wait until a round has been committed."""
    import threading
    import time

    give_up_s = time.monotonic() + 300
    while not any(b'"committed"' in path.read_bytes() for path in root.glob("work/*/events.jsonl")):
        assert flow.poll() is None and time.monotonic() < give_up_s
        threading.Event().wait(0.05)
