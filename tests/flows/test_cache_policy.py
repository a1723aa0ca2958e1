"""The key of train, and runs that resume what an unfinished run left."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fleetune.contracts import json_io
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.plan import Gate, Lane, LinkUse, PlanResult
from fleetune.contracts.run_config import RunConfig, StagesRequest
from fleetune.errors import TryAgain
from fleetune.store import RunRecord, Store
from flows.attempt import resumable_attempts, write_ingredients
from flows.cache_policy import CachePolicy, Decision
from flows.context import RunContext, StageSelection
from flows.preflight import predict_run
from flows.runner import Runner
from flows.tracking import StageEvent, ignore_event
from flows.without_prefect import run_without_prefect
from stages.catalog import STAGES, find_stage
from tests.support.clock.fleets import FLEET, plan
from tests.support.flows.toy_pipeline import MEASURE, SHAPE, World, run_toy, toy_context

TRAIN = find_stage(STAGES, "train")
FIRST, LAST = ("u0 u1", {"a": 4}, 2), ("u2 u3", {"b": 4}, 1)
RESULT = PlanResult(
    plan=plan(FIRST, LAST), objective=2.5, lower_bound=2.0, status="feasible", solve_s=0.5, method="search"
)


def stored(store: Store, kind: str, **files: str) -> str:
    """Store an artifact with these files; its digest."""
    folder = store.local.parent / "making" / kind
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return store.put(kind, folder, stage_key="0" * 32, inputs={})


def decision(
    world: World, root: Path, result: PlanResult = RESULT, fleet: Fleet = FLEET, measured: str = "{}", report: str = ""
) -> Decision:
    """The decision about train with this plan, fleet and profile."""
    context = RunContext(
        store=Store(root),
        contents={"data": lambda config: "d", "model weights": lambda config: "w"},
        versions=lambda name: "1",
        sources=lambda module: {},
    )
    inputs = {
        "model": stored(context.store, "model", graph_json="{}"),
        "data": stored(context.store, "data", data_json="{}"),
        "fleet": stored(context.store, "fleet", fleet_json=json_io.text(fleet)),
        "profile": stored(context.store, "profile", profile_json=measured),
        "plan": stored(context.store, "plan", plan_json=json_io.text(result), report_html=report),
    }
    return CachePolicy(context, world.config(), StageSelection()).decide(TRAIN, inputs)


def slower(fleet: Fleet) -> Fleet:
    """The same devices with half the memory, on links of half the rate."""
    return replace(
        fleet,
        links=tuple(replace(link, bytes_per_s=link.bytes_per_s / 2) for link in fleet.links),
        devices=tuple(replace(device, memory_bytes=device.memory_bytes // 2) for device in fleet.devices),
    )


def test_new_timings_that_lead_to_the_same_plan_train_nothing(world: World, root: Path) -> None:
    """Objective, bound, solve time, report, measured times and link rates are not part of the key."""
    first = decision(world, root)
    again = replace(RESULT, objective=3.5, lower_bound=3.0, status="optimal", solve_s=9.0, method="exact")
    second = decision(world, root, again, slower(FLEET), json.dumps({"times": 2}), "<html>")
    assert second.key == first.key
    assert second.ingredients == first.ingredients
    assert set(first.inputs) == {"model", "data", "plan", "fleet", "profile"}, "they travel beside the key"


@pytest.mark.parametrize(
    ("change", "fleet"),
    [
        (lambda result: replace(result, plan=replace(result.plan, revision=1)), FLEET),
        (lambda result: replace(result, plan=plan(("u0", {"a": 4}, 2), ("u1 u2 u3", {"b": 4}, 1))), FLEET),
        (lambda result: replace(result, plan=plan(("u0 u1", {"b": 4}, 2), ("u2 u3", {"a": 4}, 1))), FLEET),
        (lambda result: result, replace(FLEET, devices=(replace(FLEET.devices[0], threads=2), *FLEET.devices[1:]))),
        (
            lambda result: result,
            replace(FLEET, devices=(replace(FLEET.devices[0], accelerator="cuda:0"), *FLEET.devices[1:])),
        ),
    ],
    ids=["revision", "cut", "devices", "threads", "accelerator"],
)
def test_what_changes_the_weights_changes_the_key(
    change: Callable[[PlanResult], PlanResult], fleet: Fleet, world: World, root: Path
) -> None:
    """The key depends on what devices do, and on their accelerators and threads."""
    assert decision(world, root, change(RESULT), fleet).key != decision(world, root).key


TWO = tuple(Lane(name=name, segments=RESULT.plan.lanes[0].segments) for name in "ab")
LOSSY = {
    "codec": replace(RESULT.plan, links=(LinkUse(source="a", target="b", codec="int8"),)),
    "gates": replace(RESULT.plan, gates=(Gate(subnet="h", operations="3" * RESULT.plan.micro_batches),)),
    "averages": replace(RESULT.plan, lanes=TWO, average_every_rounds=2),
}


@pytest.mark.parametrize("kind", LOSSY)
def test_no_training_goes_on_from_one_of_another_method(kind: str, world: World, root: Path) -> None:
    """Another cut goes on from what is unfinished; a plan that loses something neither serves one that does not, nor
    one of other options, nor is it served by one; its own other plans go on from it."""
    store, whole = Store(root), RESULT
    lossy = replace(RESULT, plan=LOSSY[kind], options={"loss": 0.1})
    cut = plan(("u0", {"a": 4}, 2), ("u1 u2 u3", {"b": 4}, 1))
    other = replace(lossy, plan=replace(lossy.plan, revision=1))
    left = {}
    for name, result in (("whole", whole), ("lossy", lossy)):
        found = decision(world, root, result)
        write_ingredients(store.work(found.key), found.ingredients)
        left[name] = found.key

    def resumed(result: PlanResult) -> list[str]:
        asked = decision(world, root, result)
        with resumable_attempts(store, TRAIN, asked.key, asked.ingredients) as earlier:
            return [name for name, key in left.items() if key in earlier]

    assert resumed(replace(whole, plan=cut)) == ["whole"]
    assert resumed(other) == ["lossy"]
    assert resumed(replace(other, options={"loss": 0.2})) == []


@pytest.mark.parametrize(("after", "kept"), [("d2", False), ("d1", True)], ids=["changed", "touched"])
def test_what_was_changed_while_a_stage_read_it_makes_nothing_that_is_kept(
    after: str, kept: bool, world: World, root: Path
) -> None:
    """Bug: weights that somebody overwrote during a run gave artifacts under the old ones' key, and the old ones back
    in their place reused them for ever. Files that were touched, and are what they were, are no change."""
    touched: list[str] = []

    def listen(event: StageEvent) -> None:
        if (event.stage, event.kind) == ("shape", "started"):
            touched.append(event.stage)

    context = replace(
        toy_context(root, listen),
        contents={"data": lambda config: after if touched else "d1"},
        marks={"data": lambda config: len(touched)},
    )
    runner = Runner(context, world.config(), StageSelection())
    if kept:
        assert run_without_prefect(runner).state == "done"
        return
    with pytest.raises(TryAgain, match="the data were changed while the run was at work, so what shape has made"):
        run_without_prefect(runner)
    assert "shape" not in context.store.runs.load("latest").outputs
    touched.clear()
    assert (
        run_without_prefect(Runner(replace(context, listen=ignore_event), world.config(), StageSelection()))
        .stage("shape")
        .how
        == "ran"
    )


def test_a_plan_that_cannot_be_read_stands_for_itself(world: World, root: Path) -> None:
    """The digests of inputs replace a fact that cannot be computed, so that nothing is reused by mistake."""
    store = Store(root)
    context = RunContext(store=store, contents={"data": lambda config: "d", "model weights": lambda config: "w"})
    inputs = {kind: stored(store, kind, plan_json="{") for kind in TRAIN.inputs}
    found = CachePolicy(context, world.config(), StageSelection()).decide(TRAIN, inputs)
    assert found.runs and inputs["plan"] in found.ingredients["input.plan decisions"]


def test_another_processor_under_the_same_name_trains_anew(world: World, root: Path) -> None:
    """Another processor, GPU, torch or image rounds differently: the key holds the devices' fingerprints."""
    moved = replace(FLEET, devices=tuple(replace(device, fingerprint="another") for device in FLEET.devices))
    assert decision(world, root, fleet=moved).key != decision(world, root).key


def test_an_image_counts_by_what_it_holds(world: World, root: Path) -> None:
    """A stage runs again in another image under the same name, and is reused in the same image under another name; a
    stage that runs in no container does not ask for one."""

    def key(stage: str, image: str, held: str) -> str:
        context = replace(
            toy_context(root),
            catalog=(replace(MEASURE, image="ours"), replace(SHAPE, image="ours", inputs=())),
            image_id=lambda name: f"{held} {asked.append(name) or ''}",
        )
        config = replace(world.config(), stages=StagesRequest(launcher="docker", image=image))
        policy = CachePolicy(context, config, StageSelection())
        return policy.decide(find_stage(context.catalog, stage), {}).key

    asked: list[str] = []
    assert key("shape", "mine:1", "sha256:a") != key("shape", "mine:1", "sha256:b")
    assert key("shape", "mine:1", "sha256:a") == key("shape", "mine:2", "sha256:a")
    assert set(asked) == {"mine:1", "mine:2"}
    run_toy(root, replace(world.config(), stages=StagesRequest(image="mine:1")))


def unfinished(world: World, root: Path, value: str = "100") -> RunRecord:
    """A run that failed in `learn`, half of which is done."""
    world.set("value", value)
    world.set("goes-on", "")
    world.set("fail-learn", "75")
    with pytest.raises(TryAgain):
        run_toy(root, world.config())
    world.clear("fail-learn")
    world.started()
    return toy_context(root).store.runs.load("latest")


def test_an_unfinished_run_keeps_what_it_measured(world: World, root: Path) -> None:
    """Bug: on a busy machine the same command measured another fleet, planned anew and trained from the start."""
    first = unfinished(world, root)
    world.set("value", "150")
    again = run_toy(root, world.config())
    assert again.stage("measure").why == f"ran: measured in every run; the unfinished run {first.id} keeps its value"
    assert again.outputs["value"] == first.outputs["value"]
    assert world.started() == ["learn", "score"]
    assert again.stage("learn").why == f"ran: {first.id} did not finish it; goes on from the half"


def test_what_it_measured_is_kept_though_another_run_measured_since(world: World, root: Path) -> None:
    """A newer measurement by a run of other settings does not replace that of the unfinished run, in dry runs too."""
    first = unfinished(world, root)
    world.set("value", "150")
    run_toy(root, world.config("other"))
    world.started()
    planned = predict_run(Runner(toy_context(root), world.config(), StageSelection()))
    assert planned.stage("measure").outputs == first.stage("measure").outputs
    again = run_toy(root, world.config())
    assert again.outputs["value"] == first.outputs["value"] and world.started() == ["learn", "score"]


def test_a_measurement_of_another_world_is_believed(world: World, root: Path) -> None:
    """A measurement outside the tolerance replaces the old one; the new plan resumes the work that is done."""
    first = unfinished(world, root)
    world.set("value", "500")
    again = run_toy(root, world.config())
    assert again.stage("measure").why == "ran: measured in every run; the value has changed"
    assert world.started() == ["shape", "learn", "score"]
    assert again.stage("learn").why.endswith("; goes on from the half")
    assert first.stage("learn").key not in toy_context(root).store.work_keys(), "a continued attempt is deleted"


def test_reasons_are_told_against_the_run_in_mind(world: World, root: Path) -> None:
    """Bug: after a failed run, and in a rerun of an old one, the reason was a difference from a third run."""
    old = run_toy(root, world.config(weight_decay=0.5))
    run_toy(root, world.config(weight_decay=0.5, learning_rate=0.25))
    world.set("fail-learn", "75")
    with pytest.raises(TryAgain):
        run_toy(root, world.config(momentum=0.5, weight_decay=0.5, learning_rate=0.25))
    newest = predict_run(
        Runner(toy_context(root), world.config(momentum=0.25, weight_decay=0.5, learning_rate=0.25), StageSelection())
    )
    assert newest.stage("learn").why == "ran: training.momentum changed"
    again = predict_run(Runner(toy_context(root), world.config(weight_decay=0.75), StageSelection(rerun=old.id)))
    assert again.stage("learn").why == "ran: training.weight_decay changed"


@pytest.mark.parametrize("other", ["a run that is done", "other settings", "--from measure"])
def test_nothing_is_kept_for_a_run_that_is_not_the_unfinished_one(world: World, root: Path, other: str) -> None:
    """The unfinished run's measurement is not kept after a newer finished run, for another config, or with --from."""
    unfinished(world, root)
    config, selection = world.config(), {}
    if other == "a run that is done":
        run_toy(root, config)
    elif other == "other settings":
        config = world.config(learning_rate=0.25)
    else:
        selection = {"from_stage": "measure"}
    world.set("value", "150")
    again = run_toy(root, config, **selection)
    assert again.stage("measure").why.endswith("; the value has changed") or other == "--from measure"
    assert (world.folder / "value").read_text() == "150"
    store = toy_context(root).store
    assert (store.folder("value", again.outputs["value"]) / "value").read_text() == "150"


@pytest.mark.parametrize("change", ["settings", "start", "seed"])
def test_other_work_is_not_gone_on_from(world: World, root: Path, change: str) -> None:
    """An unfinished training of other settings, another seed or other initial weights is not resumed."""
    first = unfinished(world, root)
    world.set("value", "500")
    config = world.config()
    if change == "settings":
        config = world.config(learning_rate=0.25)
    elif change == "start":
        world.set("start", "other weights")
    else:
        config = RunConfig(name="toy", seed=7, model=config.model, data=config.data, training=config.training)
    again = run_toy(root, config)
    assert "goes on" not in again.stage("learn").why
    assert first.stage("learn").key in toy_context(root).store.work_keys(), "an attempt that was not continued is kept"


def test_work_that_another_process_is_at_is_left_to_it(world: World, root: Path) -> None:
    """An unfinished attempt whose lock is held is neither resumed nor deleted."""
    first = unfinished(world, root)
    world.set("value", "500")
    store = toy_context(root).store
    with store.lock(first.stage("learn").key, lambda seconds: True):
        again = run_toy(root, world.config())
    assert "goes on" not in again.stage("learn").why
    assert first.stage("learn").key in store.work_keys()


def test_a_newer_run_that_is_done_counts_though_it_lacks_a_stage(world: World, root: Path) -> None:
    """Bug: finished runs of earlier versions, with fewer stages, did not end the search for an unfinished run."""
    unfinished(world, root)
    world.set("value", "150")
    store = toy_context(root).store
    done = run_toy(root, world.config())
    store.runs.save(replace(done, stages=tuple(stage for stage in done.stages if stage.stage != "shape")))
    world.set("value", "155")
    again = run_toy(root, world.config())
    assert "unfinished" not in again.stage("measure").why
