"""The profile of a model on a fleet, made of the measurements of its devices."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fleetune.contracts import json_io
from fleetune.contracts.profile import Profile, Spread
from fleetune.contracts.run_config import ModelRequest
from fleetune.contracts.training_request import TrainingRequest
from fleetune.errors import FleetuneError, Infeasible, Refused, TryAgain
from fleetune.launching import Launcher, LocalSites
from fleetune.models.graph import Graph
from fleetune.models.recorder import record_model
from fleetune.models.segment import SegmentRunner
from fleetune.models.skeleton import saved_configuration, skeleton
from fleetune.models.source import configuration
from fleetune.models.units import fold_into_units, leaf_modules, merge_uncuttable
from fleetune.profiling.profile import batch_sizes, min_samples, profile, slope_per_sample, smallest_batch
from fleetune.profiling.task import ProfilingTask
from tests.support.launching.freezing import WORDS, Freezing
from tests.support.profiling.instances import MODEL, Scripted, ScriptedJob, costs, prepared, profiling_task
from tests.support.training.model_families import BY_NAME, data_request, model_request


@pytest.mark.parametrize(
    "micro_batch, sizes",
    [
        (1, (1,)),
        (2, (1, 2)),
        (3, (1, 2, 3)),
        (4, (1, 2, 4)),
        (6, (1, 2, 4, 6)),
        (8, (1, 2, 4, 8)),
        (9, (1, 2, 4, 8, 9)),
    ],
)
def test_batch_sizes_are_powers_of_two_and_the_micro_batch(micro_batch: int, sizes: tuple[int, ...]) -> None:
    """Batch sizes ascend without repeats from 1 to the micro-batch."""
    assert batch_sizes(micro_batch) == sizes


@given(st.integers(0, 10**9), st.integers(0, 10**6), st.integers(1, 300))
def test_what_a_sample_costs_is_a_slope(fixed: int, each: int, micro_batch: int) -> None:
    """Fixed costs are not counted per sample, unless only one batch size is known."""
    sizes = batch_sizes(micro_batch)
    amounts = [fixed + each * size for size in sizes]
    assert slope_per_sample(amounts, sizes) == (each if len(sizes) > 1 else fixed + each)


def test_a_cost_that_falls_with_the_batch_counts_as_none() -> None:
    """Bytes per sample are never negative."""
    assert slope_per_sample([100, 90], (1, 2)) == 0


def test_the_profile_has_every_device_in_the_order_of_the_fleet(tmp_path: Path) -> None:
    """Times are per device and sizes are those of the first one; only an emulated device's task has cores."""
    graph, _ = prepared(tmp_path)
    units = len(graph.units)
    launcher = Scripted({"ann": ScriptedJob([costs(units, 1.0)], 0), "bob": ScriptedJob([costs(units, 3.0)], 0)})
    made = profile(profiling_task(tmp_path, launcher, ("ann", "bob")))
    assert json_io.read(Profile, tmp_path / "profile" / "profile.json") == made
    assert made.batch_sizes == (1, 2, 4, 6)
    assert [unit.name for unit in made.units] == [unit.name for unit in graph.units]
    assert {unit.activation_bytes for unit in made.units} == {15}, "ten a sample, and half of them for the allocator"
    first, second = ((unit.workspace_bytes, unit.workspace_sample_bytes) for unit in made.units[:2])
    assert (first, second) == ((0, 5), (1499, 5)), "1000 more for the second, and three a sample, half as much again"
    assert {unit.flops for unit in made.units} == {7}
    assert [times.device for times in made.times] == ["ann", "bob"]
    assert made.times_of("bob").forward_s[1] == (6.0,) * 4
    assert made.times_of("ann").backward_s[1] == (4.0,) * 4
    assert [times.profiling_s for times in made.times] == [7.0, 21.0]
    assert {name: task.cores for name, task in launcher.given.items()} == {"ann": None, "bob": 0.5}


def test_a_fleet_of_gpus_needs_no_slack_for_the_allocator(tmp_path: Path) -> None:
    """Bug: what glibc loses was added to the memory of GPUs, whose forecast was 30 % too high.

    Where a CPU needs it, bytes are the CPU's, whichever stands first, and the GPU's forecast takes its share: here it
    keeps half as much.
    """
    graph, _ = prepared(tmp_path)
    said = costs(len(graph.units), 1.0)
    halves = [{**each, "activation_bytes": [b // 2 for b in each["activation_bytes"]]} for each in said["units"]]
    half = {**said, "units": halves}
    for accelerators, each, share in ((("cuda:0", "cuda:1"), 5, 1.0), (("cuda:0", "cpu"), 15, 1 / 3)):
        scripted = Scripted({"ann": ScriptedJob([half], 0), "bob": ScriptedJob([said], 0)})
        task = profiling_task(tmp_path, scripted, ("ann", "bob"))
        devices = zip(task.fleet.devices, accelerators, strict=True)
        fleet = replace(task.fleet, devices=tuple(replace(device, accelerator=a) for device, a in devices))
        made = profile(replace(task, fleet=fleet))
        assert {unit.activation_bytes for unit in made.units} == {each}
        on_gpu = [
            scripted.given[name].cores for name, at in zip(("ann", "bob"), accelerators, strict=True) if at != "cpu"
        ]
        assert on_gpu == [None] * len(on_gpu), "a quota of cores does not slow a GPU"
        assert [times.activation_share for times in made.times] == pytest.approx([share, 1.0])


def test_only_containers_are_stretched_by_other_loads(tmp_path: Path) -> None:
    """A container is held to its quota by the kernel, which others may keep from it; a process that emulates a device
    waits by itself, by its own processor time. The spread of passes is that of both."""
    graph, _ = prepared(tmp_path)
    said = {**costs(len(graph.units), 1.0), "stretch": 1.25, "spread": {"low": 0.9, "high": 1.1}}
    task = profiling_task(tmp_path, Scripted({name: ScriptedJob([said], 0) for name in ("ann", "bob")}), ("ann", "bob"))
    ann, bob = task.fleet.devices
    made = profile(replace(task, fleet=replace(task.fleet, devices=(ann, replace(bob, launcher="docker")))))
    assert [times.stretch for times in made.times] == [1.0, 1.25]
    assert [times.spread for times in made.times] == [Spread(low=0.9, high=1.1)] * 2


@pytest.mark.parametrize(
    "job, kind, why",
    [
        (ScriptedJob([{"event": "error", "message": "no room"}], 64), Refused, "no room"),
        (ScriptedJob([{"event": "error", "message": "no room"}], 75), TryAgain, "no room"),
        (ScriptedJob([{"event": "progress", "done": 1, "total": 6}], -9), TryAgain, "profiling"),
        (ScriptedJob([{"event": "progress", "done": 6, "total": 6}], 0), TryAgain, "profiling"),
        (ScriptedJob([], 1), TryAgain, "profiling"),
    ],
)
def test_a_device_that_fails_is_named_and_ends_the_others(
    job: ScriptedJob, kind: type[FleetuneError], why: str, tmp_path: Path
) -> None:
    """A failing device ends the others at once; the error's type tells whether trying again can help."""
    patient = ScriptedJob([], 0)  # answers nothing until it is stopped
    with pytest.raises(kind, match=f"device bob.*{why}") as failure:
        profile(profiling_task(tmp_path, Scripted({"ann": patient, "bob": job}), ("ann", "bob")))
    assert failure.type is kind
    assert patient.stopped.is_set()
    assert not (tmp_path / "profile" / "profile.json").exists()


def test_a_device_is_held_once_it_measures_and_sees_what_it_reads(tmp_path: Path) -> None:
    """The CPU limit applies once the measurement starts; each device has a folder of its own for its task and log."""
    graph, folders = prepared(tmp_path)
    before: list[dict[str, Any]] = [{"event": "loading", "runtime_bytes": 1, "unit_bytes": 1}, {"event": "measuring"}]
    after = [{"event": "progress", "done": 1, "total": 6}, costs(len(graph.units), 1.0)]
    launcher = Scripted({name: ScriptedJob([*before, *after], 0) for name in ("ann", "bob")})
    profile(profiling_task(tmp_path, launcher, ("ann", "bob")))
    for name, command in launcher.commands.items():
        assert launcher.jobs[name].held_after == 2
        own = tmp_path / "work" / "profiling" / name
        assert command.arguments == ("--task", str(own / "task.json"))
        assert command.log.parent == own
        assert command.reads == (own, folders.model, folders.data)
        assert command.writes == ()


def test_what_devices_read_of_a_model_is_told_by_folder(tmp_path: Path) -> None:
    """A device task names the model's local folder, which the device may read; the profile keeps the requested name."""
    task = profiling_task(tmp_path, Scripted({}), ("ann",))
    graph, _ = prepared(tmp_path)
    source = tmp_path / "here" / ".." / "model"
    (tmp_path / "here").mkdir()
    module = skeleton(saved_configuration(tmp_path / "profile" / "model"), MODEL)
    module.to_empty(device="cpu").save_pretrained(source)
    model = replace(MODEL, source=str(source), config={})
    launcher = Scripted({"ann": ScriptedJob([costs(len(graph.units), 1.0)], 0)})
    made = profile(replace(task, model=model, sites=LocalSites(launcher)))
    assert launcher.given["ann"].model == replace(model, source=str(tmp_path / "model"))
    assert launcher.commands["ann"].reads[3:] == (tmp_path / "model",)
    assert made.model == str(source)


LOADING = {"event": "loading", "runtime_bytes": 390_000_000, "unit_bytes": 120_000_000}


@pytest.mark.parametrize(
    ("job", "kind", "said"),
    [
        (
            ScriptedJob([LOADING], 137, out_of_memory=True),
            Infeasible,
            r"device bob ran out of its 8\.59 GB while profiling bert: a worker needs about 0\.39 GB before it holds "
            r"any unit and 0\.12 GB for the largest, activations aside; give it more memory, lower "
            r"training\.micro_batch_samples or leave it out; log: .*/profiling/bob/log",
        ),
        (
            ScriptedJob([], 137, out_of_memory=True),
            Infeasible,
            r"device bob ran out of its 8\.59 GB .* about 0\.40 GB before it holds any unit, activations aside",
        ),
        (
            ScriptedJob([LOADING, {"event": "measuring"}], -9),
            TryAgain,
            r"device bob: profiling was killed by signal 9 .*; it may have run out of its 8\.59 GB while profiling",
        ),
    ],
)
def test_a_device_whose_memory_is_too_small_is_told_what_it_takes(
    job: ScriptedJob, kind: type[FleetuneError], said: str, tmp_path: Path
) -> None:
    """Out of memory is infeasible if the engine reports it, and worth another try if a signal killed the process."""
    with pytest.raises(kind, match=said) as failure:
        profile(profiling_task(tmp_path, Scripted({"bob": job}), ("bob",)))
    assert failure.type is kind


def test_a_device_that_freezes_ends_the_profile_as_one_that_dies(tmp_path: Path) -> None:
    """Bug: a device whose process was stopped, as on a laptop that sleeps, held `profile` for ever. It is named, it
    ends the others, and nothing is said of its memory."""
    patient = ScriptedJob([], 0)
    task = profiling_task(tmp_path, Scripted({"ann": patient, "bob": ScriptedJob([], 0)}), ("ann", "bob"))
    freezing = Freezing()

    class Sites(LocalSites):
        def launcher(self, device: str) -> Launcher:
            return freezing if device == "bob" else super().launcher(device)

    with pytest.raises(TryAgain, match=f"^device bob: profiling {WORDS}.*; log: ") as failure:
        profile(replace(task, sites=Sites(task.sites.launcher("ann"))))
    assert "memory" not in str(failure.value) and patient.stopped.is_set()


MOBILENET = BY_NAME["mobilenet_v2"]
MOBILENET_REQUEST = model_request(MOBILENET, dropout=True)


def recorded(request: ModelRequest, side: int) -> tuple[Graph, torch.nn.Module]:
    """An image model and its graph."""
    module = skeleton(configuration(request, ("one", "other")), request)
    graph = record_model(
        module, {"pixel_values": torch.zeros(4, 3, side, side)}, leaf_modules(module, request.granularity)
    )
    return merge_uncuttable(fold_into_units(graph)), module


@pytest.mark.parametrize(
    ("name", "side", "granularity", "least"),
    [
        ("mobilenet_v2", 32, "layer", 1),
        ("mobilenet_v2", 8, "layer", 2),
        ("mobilenet_v2", 8, "block", 2),
        ("resnet", 32, "block", 1),
        ("vit", 16, "block", 1),
    ],
)
def test_a_batch_norm_over_single_values_needs_two_samples(name: str, side: int, granularity: str, least: int) -> None:
    """A batch norm over images of one pixel needs two samples, however deep inside a unit it is; a model needs two
    exactly if one of its units cannot be trained on one."""
    request = model_request(BY_NAME[name], dropout=True, granularity=granularity)
    graph, module = recorded(request, side)
    assert smallest_batch(graph, module) == least
    whole = module.to_empty(device="cpu")
    assert any(failing(graph, whole, side).values()) == (least == 2)
    if least == 2:
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            whole(pixel_values=torch.zeros(1, 3, side, side))
    else:
        whole(pixel_values=torch.zeros(1, 3, side, side))


def test_units_with_batch_norms_need_the_whole_micro_batch() -> None:
    """Batch norms need every sample of a micro-batch on one device, frozen ones and those deep inside a unit too, and
    instance norms that keep their mean; convolutions, pooling and heads need one."""
    request = model_request(BY_NAME["resnet"], dropout=True, freeze=(r"resnet\.embedder",))
    needed = min_samples(*recorded(request, 32), micro_batch_samples=6)
    assert {name for name, samples in needed.items() if samples == 1} == {"resnet.pooler", "classifier"}
    assert set(needed.values()) == {1, 6}
    layers = min_samples(*recorded(replace(request, granularity="layer"), 32), micro_batch_samples=6)
    assert {name.rpartition(".")[2] for name, samples in layers.items() if samples == 6} == {"normalization"}
    vit = min_samples(*recorded(model_request(BY_NAME["vit"], dropout=True), 16), micro_batch_samples=6)
    assert set(vit.values()) == {1}


def failing(graph: Graph, module: torch.nn.Module, side: int) -> dict[str, bool]:
    """Which units raise in training mode on one of the samples that the units before them made of two."""
    cpu, found = torch.device("cpu"), dict[str, bool]()
    held = dict.fromkeys(graph.inputs.values(), torch.zeros(2, 3, side, side))
    for unit in graph.units:
        runner = SegmentRunner(graph, (unit.name,), module, cpu)
        inputs = {number: held[number] for number in runner.input_values}
        single = {number: value[:1] if graph.batched(number) else value for number, value in inputs.items()}
        found[unit.name] = False
        try:
            runner.run(single, 1)
        except ValueError as error:
            found[unit.name] = "more than 1 value per channel" in str(error)
        held.update(runner.run(inputs, 2))
    return found


def test_batch_sizes_begin_where_the_model_can() -> None:
    """Batch sizes start at the smallest size that the model can be trained on."""
    assert batch_sizes(8, 2) == (2, 4, 8)
    assert batch_sizes(2, 2) == (2,)
    assert batch_sizes(3, 2) == (2, 3)


def small_images(folder: Path, launcher: Scripted, micro_batch_samples: int) -> ProfilingTask:
    """A task with a network that reduces its images to one pixel."""
    data = replace(data_request(MOBILENET, folder), image_size=8)
    return replace(
        profiling_task(folder, launcher, ("ann",), MOBILENET_REQUEST, data),
        training=TrainingRequest(rounds=1, batch_samples=4, micro_batch_samples=micro_batch_samples),
    )


def test_devices_are_not_asked_for_what_cannot_be_trained(tmp_path: Path) -> None:
    """Neither the device tasks nor the profile have a batch size that cannot be trained."""
    units = len(recorded(MOBILENET_REQUEST, 8)[0].units)
    launcher = Scripted({"ann": ScriptedJob([costs(units, 1.0, (2, 4))], 0)})
    found = profile(small_images(tmp_path, launcher, 4))
    assert found.batch_sizes == (2, 4)
    assert launcher.given["ann"].batch_sizes == (2, 4)
    assert {unit.min_samples for unit in found.units} == {1, 4}
    plain = replace(found.units[0], min_samples=1)
    assert "min_samples" not in json_io.dump(plain), "profiles of models that need one sample stay as they are"


def test_micro_batches_that_cannot_be_trained_are_refused(tmp_path: Path) -> None:
    """A micro-batch below the smallest size is refused before any device measures."""
    launcher = Scripted({})
    with pytest.raises(Refused, match="micro_batch_samples is 1, but a batch norm .* at least 2 samples; raise it"):
        profile(small_images(tmp_path, launcher, 1))
    assert not launcher.given
