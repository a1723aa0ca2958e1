"""`runs` over many runs, `show RUN ARTIFACT`, `gc`, and changes by name and by force on the command line."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fleetune.contracts import json_io
from fleetune.contracts.metrics import RoundMetrics
from fleetune.contracts.record import record
from fleetune.store import RunRecord, StageRecord, Store
from flows.cli.drawings import loss_curve
from flows.cli.work import Work
from flows.context import RunContext, StageSelection
from tests.support.cli.calls import Call, document, working
from tests.support.cli.runs import add_run
from tests.support.drawing.contents import by_hand

SIMULATED = Path(__file__).parents[2] / "configs" / "runs" / "asteroid-b.yaml"


@pytest.fixture
def many(root: Path) -> Store:
    """A store with the records of 1,000 runs, copies of one; every tenth has failed, every second is called other."""
    store, first = Store(root), add_run(root, 1)
    plain = json_io.text(first)
    shutil.rmtree(root / "runs")
    for number in range(1000):
        text = plain.replace('"small-1"', f'"small-{number:04}"').replace('"2026-01-02T13', f'"2026-{number:06}')
        text = (
            text.replace('"state": "done",\n "started"', '"state": "failed",\n "started"') if number % 10 == 0 else text
        )
        text = text.replace('"name": "small"', '"name": "other"') if number % 2 else text
        folder = root / "runs" / f"small-{number:04}"
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(text)
    return store


def test_a_list_of_many_runs_parses_only_what_it_shows(
    call: Call, many: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 1,000 runs the 50 newest are listed, with the number of the others; only these 50 records are parsed."""
    real, parsed = json_io.parse_plain, []

    def parse(source: bytes, owner: str) -> Any:
        parsed.append(owner)
        return real(source, owner)

    # replaced: counts the records that are parsed, which no output shows
    monkeypatch.setattr(json_io, "parse_plain", parse)
    shown = call("runs").stdout
    assert shown.count("small-") == 50 and "small-0999" in shown and "small-0949" not in shown
    assert shown.splitlines()[-1] == "and 950 more; --limit 0 lists all"
    assert len(parsed) == 50


def test_runs_are_filtered(call: Call, many: Store) -> None:
    """--name matches the run file's name or a pattern, --state the state, --limit cuts off; --json lists all."""
    assert len(document(call("runs", "--json"))["runs"]) == 1000
    told = document(call("runs", "--json", "--name", "small", "--state", "failed", "--limit", "7"))
    assert [run["id"] for run in told["runs"]] == [f"small-{number:04}" for number in range(990, 920, -10)]
    assert (len(told["runs"]), told["more"]) == (7, 93)
    assert len(document(call("runs", "--json", "--name", "oth*"))["runs"]) == 500
    assert call("runs", "--limit", "0").stdout.count("small-") == 1000
    assert "no such runs" in call("runs", "--name", "none").stdout
    refused = call("runs", "--state", "finished")
    assert refused.exit_code == 64 and "'finished'; allowed are running, done, failed" in refused.stderr


def test_runs_have_a_kind(call: Call, root: Path) -> None:
    """A list of runs tells an evaluation, and one of a single stage, from a run of the pipeline."""
    first = add_run(root, 1)
    for number, kind in enumerate(("evaluation", "only"), start=2):
        Store(root).runs.save(dataclasses.replace(first, id=f"small-{number}", kind=kind))
    told = document(call("runs", "--json"))["runs"]
    assert {run["id"]: run["kind"] for run in told} == {"small-1": "run", "small-2": "evaluation", "small-3": "only"}
    assert {line.split()[1] for line in call("runs").stdout.splitlines() if "small-" in line} >= {"evaluation", "only"}


def test_damaged_records_do_not_hide_the_others(call: Call, root: Path) -> None:
    """Records that are cut off, or of another run, folders in their place, stray files: the others are listed."""
    for number in (1, 2, 3, 4):
        add_run(root, number)
    runs = root / "runs"
    (runs / "small-1" / "run.json").write_text((runs / "small-1" / "run.json").read_text()[:300])
    shutil.copytree(runs / "small-2", runs / "copied")
    (runs / "odd" / "run.json").mkdir(parents=True)
    (runs / "notes.txt").write_text("mine")
    plain = json.loads((runs / "small-3" / "run.json").read_text())
    (runs / "small-3" / "run.json").write_text(json.dumps(plain))  # formatted by somebody else
    plain = json.loads((runs / "small-4" / "run.json").read_text())
    (runs / "small-4" / "run.json").write_text(json.dumps({**plain, "started": "noon"}, indent=1))
    assert [run["id"] for run in document(call("runs", "--json"))["runs"]] == ["small-4", "small-3", "small-2"]
    assert "noon" in call("runs").stdout
    assert "cannot be read" in call("show", "odd").stderr


def add_artifacts(root: Path, *, finished: bool = True) -> RunRecord:
    """Add the artifacts of a pipeline's stages to a run; unfinished, its training has only a log in its work folder."""
    store, run, content = Store(root), add_run(root, 1), by_hand("links")
    events = [{"at_s": 5.0, "event": "started", "rounds": 3}, {"at_s": 6.0, "event": "joined", "device": "tower-1"}]
    events += [{"at_s": 7.0 + number, "event": "committed", "round": number} for number in range(3)]
    events += [{"at_s": 9.5, "event": "lost", "device": "tower-1", "reason": "it is silent"}]
    log = "".join(f"{json.dumps(event)}\n" for event in events) + '{"at_s": 9'
    files: dict[str, dict[str, Any]] = {
        "fleet": {"fleet.json": content.fleet},
        "profile": {"profile.json": content.profile},
        "plan": {"plan.json": content.plan, "forecast.json": content.forecast},
        "metrics": {"training.json": content.training, "forecast.json": content.forecast, "events.jsonl": log},
    }
    stages = []
    for kind, stage in {"fleet": "discover", "profile": "profile", "plan": "plan", "metrics": "learn"}.items():
        key = f"{kind:0<32}"
        folder = store.work(key)
        for name, value in files[kind].items():
            (folder / name).write_text(value if isinstance(value, str) else json_io.text(value))
        ended = finished or kind != "metrics"
        outputs = {kind: store.put(kind, folder, stage_key=key, inputs={})} if ended else {}
        state = "done" if ended else "failed"
        stages.append(StageRecord(stage=stage, key=key, state=state, outputs=outputs, how="ran", why="ran: once"))
    whole = dataclasses.replace(run, stages=(*stages, *(run.stages if finished else ())))
    store.runs.save(whole)
    return whole


def test_artifacts_are_drawn(call: Call, root: Path) -> None:
    """Every artifact is drawn with the names and figures of its content."""
    add_artifacts(root)
    content = by_hand("links")
    parts: dict[str, tuple[str, ...]] = {
        "fleet": tuple(device.name for device in content.fleet.devices),
        "profile": (content.profile.units[0].name, "whole model", "slowest units"),
        "plan": ("forecast of one round", "links by hand", "made    plan"),
        "metrics": ("loss:", "each round", "peak memory of", "6.25", "5.5"),
        "events": ("3 of 3 rounds", "rounds 0 to 2", "it is silent", "1 unreadable lines"),
    }
    for kind, expected in parts.items():
        shown = call("show", "latest", kind)
        assert shown.exit_code == 0, shown.stderr
        for part in expected:
            assert part in shown.stdout, (kind, part, shown.stdout)
        assert "not trained on" not in shown.stdout, "an older version did not count such samples"


def test_artifacts_as_json(call: Call, root: Path) -> None:
    """--json holds the artifact's own JSON under `content`, beside the stage that made it with its files."""
    run, content = add_artifacts(root), by_hand("links")
    told = {kind: document(call("show", "latest", kind, "--json")) for kind in ("fleet", "plan", "metrics", "events")}
    assert told["fleet"]["content"] == json_io.dump(content.fleet)
    assert told["plan"]["content"]["plan"] == json_io.dump(content.plan)
    assert told["metrics"]["content"]["evaluation"]["scores"][0]["after"] == 5.5
    assert "forecast_memory_bytes" in told["metrics"]["content"]["evaluation"]
    assert [event["event"] for event in told["events"]["content"]["log"]][:2] == ["started", "joined"]
    assert told["fleet"]["stage"]["stage"] == "discover"
    assert told["fleet"]["artifacts"][0]["digest"] == run.outputs["fleet"]


def test_events_of_a_training_that_has_failed(call: Call, root: Path) -> None:
    """The log in the work folder of a failed training is drawn, and says how far it came."""
    add_artifacts(root, finished=False)
    shown = call("show", "small-1", "events").stdout
    assert "3 of 3 rounds" in shown and "it is silent" in shown and "has not ended well" in shown
    missing = call("show", "small-1", "metrics")
    assert missing.exit_code == 64
    assert "it has no metrics; its stages are: discover done, profile done, plan done, learn failed" in missing.stderr


def test_a_damaged_artifact_is_named(call: Call, root: Path) -> None:
    """A file that is cut off is refused by its path; a stage of the same name is shown without the drawing."""
    run = add_artifacts(root)
    for kind in ("fleet", "plan"):
        path = Store(root).folder(kind, run.outputs[kind]) / f"{kind}.json"
        path.write_text(path.read_text()[:40])
    refused = call("show", "small-1", "fleet")
    assert refused.exit_code == 64 and "fleet.json" in refused.stderr
    shown = call("show", "small-1", "plan")
    assert shown.exit_code == 0 and "cannot be drawn" in shown.stdout and "made    plan" in shown.stdout


@pytest.mark.parametrize(("losses", "rows"), [([2.0, 1.0], ["2 █", "1 █▁"]), ([1.0], ["1 ▁"]), ([3.0] * 500, [])])
def test_loss_curve(losses: list[float], rows: list[str]) -> None:
    """The highest loss fills the plot, the lowest is its base; a constant loss and one round are drawn too."""
    rounds = [
        RoundMetrics(round=number, loss=loss, gradient_norm=None, learning_rate=0.1, round_s=1.0)
        for number, loss in enumerate(losses)
    ]
    first, *lines = loss_curve(rounds)
    assert first.startswith(f"loss: {losses[0]:.4g} in round 0")
    assert max(map(len, lines)) <= 80 and len(lines) == 10
    for row in rows:
        assert row in [line.strip() for line in lines]
    assert loss_curve([]) == ["no round was trained"]


def test_gc(call: Call, root: Path) -> None:
    """A dry run lists what would go and why the rest stays; the removal frees the same bytes; --json has both."""
    for number in (1, 2, 3):
        add_run(root, number, rounds=number)
    planned = document(call("gc", "--keep", "1", "--dry-run", "--json"))
    assert {run.id for run in Store(root).runs.all()} == {"small-1", "small-2", "small-3"}
    for run in ("small-1", "small-2"):
        (root / "tensorboard" / run).mkdir(parents=True)
    said = call("gc", "--keep", "1", "--dry-run").stdout
    assert "would free" in said and "2 TensorBoard files\n" in said, "no filess"
    shutil.rmtree(root / "tensorboard")
    done = document(call("gc", "--keep", "1", "--json"))
    assert {**planned, "dry_run": False} == done
    assert done["freed_bytes"] == sum(one["bytes"] for one in done["removed"]) > 0
    assert done["kept"] == [{"run": "small-3", "why": "the newest trained small"}]
    assert document(call("verify", "small-3", "--json"))["ok"]
    shown = call("gc", "--keep", "1").stdout
    assert "nothing to remove" in shown and "the newest trained small" in shown
    assert call("gc", "--keep", "-1").exit_code == 64


@record
class Asked:
    """What the command line asked the pipeline for."""

    strategy: str
    force: bool
    from_stage: str | None


def test_force_and_a_strategy_by_name(call: Call, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`rerun --set strategy=NAME` reads configs/strategies from anywhere in a checkout; --force reaches the stages."""
    asked: list[Asked] = []

    class Asking(Work):
        def run_with(
            self, context: RunContext, config: Any, selection: StageSelection, dry_run: bool = False
        ) -> RunRecord:
            asked.append(Asked(strategy=config.strategy.name, force=selection.force, from_stage=selection.from_stage))
            return add_run(root, len(asked) + 1)

    monkeypatch.setattr("signal.signal", lambda *_: None)
    add_run(root, 1)
    monkeypatch.chdir(SIMULATED.parents[2])
    for arguments in (
        ["rerun", "small-1", "--set", "strategy=split-learning"],
        ["rerun", "small-1", "--force", "--from", "train"],
        ["run", SIMULATED, "--force"],
    ):
        with working(Asking()):
            ended = call(*arguments)
        assert ended.exit_code == 0, ended.stderr
    assert asked[0] == Asked(strategy="split-learning", force=False, from_stage=None)
    assert asked[1] == Asked(strategy="dp", force=True, from_stage="train")
    assert asked[2].force
    refused = call("rerun", "small-1", "--set", "strategy=asteroit")
    assert refused.exit_code == 64 and "there is no asteroit.yaml" in refused.stderr
