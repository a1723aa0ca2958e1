"""Removal of old runs while runs start, reuse and end, and runs of what was removed."""

import threading
from pathlib import Path

import pytest

from fleetune.errors import TryAgain
from fleetune.store import Store
from fleetune.store.garbage import Removal, remove_old_runs
from flows.cache_policy import CachePolicy, Decision
from flows.context import StageSelection
from flows.runner import Runner
from flows.without_prefect import run_without_prefect
from stages.catalog import StageSpec
from tests.support.flows.toy_pipeline import World, run_toy, toy_context

PATIENCE_S = 60.0


def test_what_was_removed_is_made_again_and_said(world: World, root: Path) -> None:
    """A stage whose key is known but whose artifacts are gone runs, gives the same outputs, and the reason says so."""
    first = run_toy(root, world.config())
    newer = run_toy(root, world.config(learning_rate=0.5))
    remove_old_runs(Store(root), 1)
    world.started()
    again = run_toy(root, world.config())
    assert world.started() == ["learn", "score"]
    assert again.stage("shape").why == f"reused: same key as {first.id}"
    assert again.stage("learn").why == f"ran: its artifacts are gone from the store, {first.id} had them"
    assert again.outputs == first.outputs
    assert newer.id in {run.id for run in Store(root).runs.all()}


def test_no_artifact_goes_between_its_finding_and_the_record_that_names_it(
    world: World, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A removal that begins while a stage checks what it reuses waits; begun before the next stage, it spares that."""
    first = run_toy(root, world.config())
    (root / "runs" / first.id / "run.json").unlink()  # nothing but keys names the artifacts now
    real, met = CachePolicy.damage, []

    def damage(self: CachePolicy, spec: StageSpec, decision: Decision) -> str:
        with pytest.raises(TryAgain):
            remove_old_runs(Store(root), 0)
        met.append(spec.name)
        return real(self, spec, decision)

    # replaced: the removal begins at the moment at which a stage checks what it reuses
    monkeypatch.setattr(CachePolicy, "damage", damage)
    again = run_toy(root, world.config())
    assert met == ["shape", "learn", "score"]
    assert {again.stage(name).how for name in met} == {"reused"}


def test_runs_are_whole_while_everything_old_is_removed_all_the_time(world: World, root: Path) -> None:
    """Runs succeed, and end with all their artifacts, while another thread removes whatever it may again and again."""
    end, swept = threading.Event(), threading.Event()
    removed: list[Removal] = []
    errors: list[BaseException] = []

    def remove() -> None:
        while not end.wait(0.01):
            try:
                removed.append(remove_old_runs(Store(root), 0, pause=end.wait))
                swept.set()
            except TryAgain:
                pass  # the end came while it waited
            except BaseException as error:
                errors.append(error)
                raise

    thread = threading.Thread(target=remove)
    thread.start()
    try:
        for rate in (0.1, 0.2, 0.1):
            runner = Runner(toy_context(root), world.config(learning_rate=rate), StageSelection())
            with runner:
                for name in ("measure", "shape", "learn"):
                    made = runner.run_stage(name).outputs
                    assert not [output for output in made.items() if runner.context.store.first_bad(*output)]
            swept.clear()
            assert swept.wait(PATIENCE_S), errors
    finally:
        end.set()
        thread.join()
    assert not errors
    assert sum(len(one.removed) for one in removed) > 0
    assert run_without_prefect(Runner(toy_context(root), world.config(), StageSelection())).state == "done"


def test_force_runs_what_is_known(world: World, root: Path) -> None:
    """--force runs every stage again, and after --from only those from there on; outputs stay what they were."""
    first = run_toy(root, world.config())
    world.started()
    context = toy_context(root)
    forced = run_without_prefect(Runner(context, world.config(), StageSelection(force=True)))
    assert world.started() == ["shape", "learn", "score"]
    assert forced.stage("shape").why == "ran: asked for with --force"
    assert forced.outputs == first.outputs
    late = run_without_prefect(Runner(context, world.config(), StageSelection(force=True, from_stage="learn")))
    assert world.started() == ["learn", "score"]
    assert [late.stage(name).how for name in ("measure", "shape", "learn", "score")] == [
        "reused",
        "reused",
        "ran",
        "ran",
    ]
