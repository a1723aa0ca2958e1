"""The key of train holds what changes the trained weights, and nothing else of plan, fleet and profile."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fleetune.contracts import json_io
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.plan import PlanResult
from fleetune.store import Store
from flows.cache_policy import CachePolicy, Decision
from flows.context import RunContext, StageSelection
from stages.catalog import STAGES, find_stage
from tests.clock.fleets import FLEET, plan
from tests.flows.toy_pipeline import World

TRAIN = find_stage(STAGES, "train")
FIRST, LAST = ("u0 u1", {"a": 4}, 2), ("u2 u3", {"b": 4}, 1)
RESULT = PlanResult(
    plan=plan(FIRST, LAST), objective=2.5, lower_bound=2.0, status="feasible", solve_s=0.5, method="search"
)


def stored(store: Store, kind: str, **files: str) -> str:
    """The digest of an artifact with these files, which is in the store afterwards."""
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
    """The same devices, with less memory on links of half the rate."""
    return replace(
        fleet,
        links=tuple(replace(link, bytes_per_s=link.bytes_per_s / 2) for link in fleet.links),
        devices=tuple(replace(device, memory_bytes=device.memory_bytes // 2) for device in fleet.devices),
    )


def test_new_timings_that_lead_to_the_same_plan_train_nothing(world: World, root: Path) -> None:
    """Objective, bound, solve time, report, measured times and link rates are outside of the key."""
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
