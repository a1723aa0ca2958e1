"""Containers that are paused, killed or out of memory in the middle of a training: the others go on, and lose nothing.

One that was killed comes back; one whose memory does not suffice does not.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from fleetune.contracts import json_io
from fleetune.contracts.fleet import PROCESS, Fleet
from fleetune.contracts.metrics import TrainingMetrics
from fleetune.contracts.plan import PlanResult
from fleetune.contracts.profile import Profile
from fleetune.contracts.task import Progress
from fleetune.launching import open_sites
from fleetune.launching.docker import cleanup
from fleetune.launching.placement import FleetPlacement
from fleetune.monitoring import follow
from fleetune.recovery import membership
from fleetune.training import coordinator, revisions
from fleetune.training.checkpoints import trained_tensors
from fleetune.training.task import TrainingTask
from stages.reviser import reviser
from tests.support.engine.pipelines import MODEL, Told, config, configured, fleet_of, run
from tests.support.engine.places import ignored
from tests.support.training.listeners import waiting_for

SAMPLES = 64
FAST_LINKS = ("fleet.links.mbit_per_s=1000", "fleet.links.latency_s=0.0002")
RETURN_ROUNDS, SLOWED_S, PATIENCE_S = 40, 1.5, 120.0
"""Rounds, slowed down as long as the container is away: more than are trained until one that was killed is back."""
TOLERANCE = 1e-9
"""Relative distance of losses and tensors in double precision that other orders of addition may lead to."""
SMALL_BYTES = 600 << 20
"""Enough for a worker, and not for what is put into its memory beside it."""
FILL = (
    "import os; file = os.open('/tmp/filling', os.O_WRONLY | os.O_CREAT); some = bytes(32 << 20)\n"
    "while True: os.write(file, some)"
)
"""Files in a container's /tmp count to its memory, and nothing can be reclaimed of them. When the limit is hit, the
kernel ends the process with the most memory of its own: the worker, and not the one that writes. It writes much at a
time, since its own code has to be read again and again where memory is that short, for half a minute on a busy
machine."""


def trained(told: Told, folder: Path, fleet: Fleet, rounds: int, **changes: Any) -> TrainingMetrics:
    """Train the plan of a run on the devices of a fleet."""
    found = {kind: told.store.folder(kind, digest) for kind, digest in told.record.outputs.items()}
    plan = json_io.read(PlanResult, found["plan"] / "plan.json")
    profile = json_io.read(Profile, found["profile"] / "profile.json")
    given = configured(told)
    with open_sites(FleetPlacement.from_fleet(fleet), ignored) as sites:
        return coordinator.train(
            TrainingTask(
                plan=plan,
                fleet=fleet,
                profile=profile,
                model_folder=found["model"],
                data_folder=found["data"],
                model=given.model,
                training=replace(given.training, rounds=rounds),
                seed=3,
                work=folder / "work",
                output=folder / "output",
                sites=sites,
                revise=reviser(plan, fleet, profile, 3),
                **changes,
            )
        )


@pytest.fixture(scope="module")
def told(store_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Told:
    """A run with a plan for a group of three, in which nothing is read from a checkpoint.

    Their links are fast beside their cores, so that three of them are faster than two: 64 patches an image.
    """
    training = {"rounds": 8, "batch_samples": SAMPLES, "micro_batch_samples": SAMPLES, "checkpoint_every_rounds": 1000}
    model = {**MODEL, "config": {**MODEL["config"], "patch_size": 2}, "precision": "float64"}
    changes = {"model": model, "strategy": {"name": "dp"}, "training": training, "stages": {"launcher": "process"}}
    folder = tmp_path_factory.mktemp("falls")
    told = run(config(folder, 3, **changes), store_root, *FAST_LINKS, until="plan")
    plan = json_io.read(PlanResult, told.store.folder("plan", told.record.outputs["plan"]) / "plan.json")
    assert set(plan.plan.devices) == {"desk", "nano", "shed"}
    return told


class Whole(NamedTuple):
    """A training that nothing befell."""

    folder: Path
    metrics: TrainingMetrics


@pytest.fixture(scope="module")
def whole(told: Told, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Whole]:
    """So many rounds of the run's plan on processes of this machine; each number is trained once."""
    fleet = fleet_of(told)
    as_processes = tuple(replace(each, launcher=PROCESS, emulated=False) for each in fleet.devices)

    @functools.cache
    def trained_rounds(rounds: int) -> Whole:
        folder = tmp_path_factory.mktemp("whole")
        return Whole(folder, trained(told, folder, replace(fleet, devices=as_processes), rounds))

    return trained_rounds


def worker(engine: Any, folder: Path, device: str) -> Any:
    """The container in which a device takes part in the training in this folder."""
    task = str(folder / "work" / "workers" / device)
    running = engine.containers.list(filters={"label": cleanup.RUN_LABEL}, ignore_removed=True)
    (found,) = [each for each in running if task in " ".join(each.attrs["Config"]["Cmd"])]
    return found


def fill_memory(container: Any) -> None:
    """Use up the memory that a container may have."""
    container.exec_run([container.attrs["Config"]["Entrypoint"][0], "-S", "-c", FILL])


def after(falls: dict[int, Callable[[], object]]) -> Progress:
    """Return a listener that lets each of these happen when so many rounds are committed for the first time."""

    def listen(what: str, done: float, total: float, unit: str = "", detail: str = "") -> None:
        if (fall := falls.pop(int(done) // SAMPLES, None)) is not None:
            fall()

    return listen


def assert_nothing_lost(folder: Path, met: TrainingMetrics, whole: Whole, lost: list[str]) -> None:
    """These devices were lost, and losses and weights are those of a training that nothing befell."""
    events = follow(folder / "output" / "metrics" / "events.jsonl", lambda *_: None, alive=lambda: False)
    assert [each.split()[1] for each in events.failures] == lost, events.failures
    assert [each.round for each in met.rounds] == [each.round for each in whole.metrics.rounds]
    assert [each.round for each in met.rounds] == list(range(len(met.rounds)))
    for ours, other in zip(met.rounds, whole.metrics.rounds, strict=True):
        assert abs(ours.loss - other.loss) <= TOLERANCE * abs(other.loss), (ours, other)
    states = [trained_tensors(each / "output" / "checkpoint" / "state") for each in (whole.folder, folder)]
    assert states[0].keys() == states[1].keys()
    for name, tensor in states[0].items():
        distance = float(torch.linalg.vector_norm(tensor.double() - states[1][name].double()))
        assert distance <= TOLERANCE * max(1.0, float(torch.linalg.vector_norm(tensor.double()))), name


def test_containers_that_are_paused_and_killed_cost_no_round(
    engine: Any, told: Told, whole: Callable[[int], Whole], tmp_path: Path
) -> None:
    """One of a group of three is paused and given up; later one is killed. The third holds all that they held: losses
    and weights are those of a training that nothing befell, and no container is left, the paused one neither.
    """
    falls: dict[int, Callable[[], object]] = {
        2: lambda: worker(engine, tmp_path / "met", "nano").pause(),
        5: lambda: worker(engine, tmp_path / "met", "shed").kill(),
    }
    met = trained(told, tmp_path / "met", fleet_of(told), 8, progress=after(falls))
    assert not falls, "both have happened"
    assert_nothing_lost(tmp_path / "met", met, whole(8), ["nano", "shed"])


def test_a_killed_container_comes_back_and_takes_part_again(
    engine: Any, told: Told, whole: Callable[[int], Whole], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of a group of three is killed, is started again in a new container and takes part again, with what the others
    give it: without a round run again, to the losses and weights of a training that nothing befell."""
    monkeypatch.setattr(membership, "FIRST_S", 0.05)
    monkeypatch.setattr(revisions, "MIN_GAIN", -9.0)  # it joins, whatever a busy machine's profile says of its gain
    folder, said = tmp_path / "met", list[str]()
    falls: dict[int, Callable[[], object]] = {2: lambda: worker(engine, folder, "shed").kill()}
    progress = waiting_for(said, "device shed is back", after(falls), SLOWED_S, PATIENCE_S)
    met = trained(told, folder, fleet_of(told), RETURN_ROUNDS, progress=progress, note=said.append, returns=True)
    assert not falls and "device shed is back" in said, said
    goes_on = [each for each in said if each.startswith("goes on from")]
    assert len(goes_on) == 2 and " on desk, nano: " in goes_on[0] and " on desk, nano, shed: " in goes_on[1], said
    assert not any("run again" in each or "read" in each for each in goes_on), said
    assert_nothing_lost(folder, met, whole(RETURN_ROUNDS), ["shed"])


def test_a_container_out_of_memory_is_left_out(
    engine: Any, told: Told, whole: Callable[[int], Whole], tmp_path: Path
) -> None:
    """The memory of one of a group of three is full: a note names it and how much it may have, it is not started again,
    and the two others go on, to the losses and weights of a training that nothing befell."""
    found, folder, said = fleet_of(told), tmp_path / "met", list[str]()
    devices = tuple(replace(each, memory_bytes=SMALL_BYTES) if each.name == "nano" else each for each in found.devices)
    falls: dict[int, Callable[[], object]] = {2: lambda: fill_memory(worker(engine, folder, "nano"))}
    fleet, progress = replace(found, devices=devices), after(falls)
    met = trained(told, folder, fleet, 8, progress=progress, note=said.append, returns=True)
    assert not falls and any(each.startswith("device nano ran out of its 0.63 GB") for each in said), said
    goes_on = [each for each in said if each.startswith("goes on from")]
    assert len(goes_on) == 1 and " on desk, shed: " in goes_on[0] and "device nano is back" not in said, said
    assert_nothing_lost(folder, met, whole(8), ["nano"])
