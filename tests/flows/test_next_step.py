"""The next command of a state: it can be copied, and means the run that the message is about."""

import dataclasses
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from prefect.client.schemas.objects import State
from prefect.states import Cancelled

from fleetune.errors import FleetuneError, Infeasible, Refused, TryAgain
from fleetune.store import RunRecord
from flows import requested_run, stage_tasks
from flows.cli.app import app
from flows.comparison.comparer import CompareRequest
from flows.comparison.record import ComparedStrategy, Comparison, RoundFigures
from flows.comparison.requested import next_words, words_after_refusal
from flows.context import StageSelection
from flows.form import RunRequest
from flows.next_step import again, and_next, command

RUN = "demo-20260102-120000-ab12"
FORM = dataclasses.asdict(RunRequest(base="demo"))
STORE = "/srv/the runs"


def parsed(copied: str) -> tuple[str, dict[str, Any]]:
    """The name of the command and the values of its parameters, as the command line reads a copied text."""
    program, name, *words = shlex.split(copied)
    assert Path(program).name == "fleetune"
    found = typer.main.get_command(app)
    context = found.commands[name].make_context(name, words)  # type: ignore[attr-defined]
    return name, context.params


@pytest.fixture(autouse=True)
def _by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")


@pytest.mark.parametrize(
    ("flow", "values", "words"),
    [
        ("finetune", FORM, "run configs/runs/demo.yaml"),
        ("finetune", {}, "run configs/runs/demo.yaml"),
        ("finetune", {**FORM, "base": "configs/runs/demo.yaml"}, "run configs/runs/demo.yaml"),
        (
            "finetune",
            {**FORM, "strategy": "dp", "rounds": 3, "changes": ("data.text_column=the text",), "force": True},
            "run configs/runs/demo.yaml --set strategy=dp --set training.rounds=3"
            " --set 'data.text_column=the text' --force",
        ),
        ("finetune", {**FORM, "until": "plan"}, "run configs/runs/demo.yaml --until plan"),
        ("finetune", {**FORM, "only": "plan"}, "run configs/runs/demo.yaml --until plan"),
        ("finetune", {**FORM, "base": RUN}, f"rerun {RUN}"),
        ("finetune", {"base": RUN, "start_from": "train", "until": "train"}, f"rerun {RUN} --from train --until train"),
        ("finetune", {"base": RUN, "only": "evaluate"}, f"rerun {RUN} --only evaluate"),
        ("finetune", {"base": "x; rm -r /"}, "rerun 'x; rm -r /'"),
        (
            "profile-fleet",
            {"base": "demo", "fleet": "here"},
            "run configs/runs/demo.yaml --until profile --set fleet=here",
        ),
        ("profile-fleet", {"base": RUN}, f"rerun {RUN} --until profile"),
        ("compare", {"base": "demo"}, "compare configs/runs/demo.yaml"),
        (
            "compare",
            {"base": RUN, "strategies": ["dp", "pp"], "train": True, "target_loss": 0.5, "rounds": 4},
            f"compare {RUN} --strategies dp,pp --train --target-loss 0.5 --set training.rounds=4",
        ),
        ("evaluate", {"run": RUN}, f"evaluate {RUN}"),
        (
            "evaluate",
            {"run": RUN, "data": "digits", "changes": ["data.test_samples=9"], "force": True},
            f"evaluate {RUN} --data digits --set data.test_samples=9 --force",
        ),
    ],
)
def test_the_command_of_a_form(flow: str, values: dict[str, Any], words: str) -> None:
    """Whatever was asked for in a form has a command, which the command line understands and which keeps the store."""
    copied = command(STORE, again(flow, values))
    assert copied == f"fleetune {words} --root '{STORE}'"
    name, params = parsed(copied)
    assert name == words.split()[0] and params["root"] == STORE


def test_the_default_store_is_not_named() -> None:
    """Where `fleetune` looks anyway, the command stays short; another store has its absolute path."""
    assert command("runs", ["models"]) == "fleetune models"
    assert command(str(Path("runs").resolve()), ["models"]) == "fleetune models"
    assert command("kept", ["models"]) == f"fleetune models --root {Path('kept').resolve()}"
    assert command("memory://kept", ["models"]) == "fleetune models --root memory://kept"


def test_the_program_is_found_without_an_activated_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: `fleetune` is no command of the shell unless its environment was activated; then the path is told."""
    monkeypatch.setattr(shutil, "which", lambda name: None)
    program = shlex.split(command("runs", ["models"]))[0]
    assert Path(program).name == "fleetune" and (Path(program).is_file() or program == "fleetune")


def test_a_message_has_one_next_command() -> None:
    """A message that was completed is not completed again, and no full stop stands before the command."""
    once = and_next("it failed. ", "fleetune runs")
    assert once == "it failed; next: fleetune runs" and and_next(once, "fleetune models") == once


def runner(decided: Any = None, **selection: Any) -> Any:
    """What the end of a run reads of its runner."""
    return SimpleNamespace(
        record=SimpleNamespace(id=RUN),
        context=SimpleNamespace(store=SimpleNamespace(root=STORE)),
        decide_promotion=lambda: decided,
        selection=StageSelection(**selection),
        given={},
        rerun_of="",
    )


def failed(error: FleetuneError) -> State[Any]:
    """The state of a run that failed in a stage."""
    return stage_tasks.failed(runner(), error, stage_tasks.go_on_command(runner(until="plan")))


def refused_before(error: FleetuneError, base: str = "demo") -> State[Any]:
    """The state of a run that failed before it began."""
    request = RunRequest(base=base, rounds=3)
    return stage_tasks.failed_state(error, requested_run.after_refusal(request, error, STORE))


def promotion(promoted: bool) -> State[Any]:
    return stage_tasks.completed(runner(SimpleNamespace(promoted=promoted, why="loss 2 before and 1 after")))


def nothing_new() -> State[Any] | None:
    store: Any = SimpleNamespace(root=STORE)
    planned: Any = RunRecord
    return requested_run.nothing_new(store, RunRequest(base="demo"), planned, lambda store, planned: RUN)


TRAINING = CompareRequest(base="demo", strategies=("dp", "pp"), rounds=3, train=True)


def compared(*measured: str, untrainable: tuple[str, ...] = ()) -> Comparison:
    """A comparison in which pp is the fastest; `measured` were trained."""
    figures = {"dp": 2.0, "pp": 1.0}

    def row(name: str, round_s: float) -> ComparedStrategy:
        of_round = RoundFigures(round_s=round_s, memory_bytes=(), link_bytes=0)
        return ComparedStrategy(
            name=name, state="trained" if name in measured else "planned", run=f"demo-{name}", samples=8,
            forecast=of_round, measured=of_round if name in measured else None, untrainable=untrainable,
        )  # fmt: skip

    return Comparison(
        id="demo-compare", name="demo", model="m", started="", rounds=3, devices=(), measured_by=RUN, fleet="",
        strategies=tuple(row(name, round_s) for name, round_s in figures.items()),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("found", "simulated", "words"),
    [
        (compared("dp"), False, "show demo-dp"),
        (compared(), False, "run configs/runs/demo.yaml --set strategy=pp --set training.rounds=3"),
        (compared(), True, "show demo-pp plan"),
        (compared(untrainable=("gates",)), False, "show demo-pp plan"),
    ],
)
def test_a_comparison_names_the_next_command(found: Comparison, simulated: bool, words: str) -> None:
    """After a training the run of the winner, before it the run that trains by it, and else its plan."""
    copied = command(STORE, next_words(TRAINING, found, simulated))
    assert copied == f"fleetune {words} --root '{STORE}'"
    parsed(copied)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("base: 'x' is neither a run file nor a past run", "runs"),
        (
            "train: device a is simulated",
            "compare configs/runs/demo.yaml --strategies dp,pp --set training.rounds=3 --set KEY=VALUE",
        ),
    ],
)
def test_a_refused_comparison_names_the_next_command(said: str, words: str) -> None:
    """Bug: after a base that nothing is called by, the command was the one that had just been refused."""
    assert shlex.join(words_after_refusal(TRAINING, Refused(said))) == words


@pytest.mark.parametrize(
    ("name", "made", "words"),
    [
        ("Completed", lambda: stage_tasks.completed(runner()), ["show", RUN]),
        ("Promoted", lambda: promotion(True), ["models"]),
        ("NotBetter", lambda: promotion(False), ["show", RUN]),
        ("NothingNew", nothing_new, ["show", RUN]),
        ("Refused", lambda: failed(Refused("it cannot be trained")), ["show", RUN]),
        ("Infeasible", lambda: failed(Infeasible("too little memory")), ["show", RUN]),
        ("TryAgain", lambda: failed(TryAgain("a device is gone")), ["rerun", RUN, "--until", "plan"]),
        (
            "Refused",
            lambda: refused_before(Refused("training: rounds is -1")),
            ["run", "configs/runs/demo.yaml", "--set", "training.rounds=3", "--set", "KEY=VALUE", "--dry-run"],
        ),
        ("Refused", lambda: refused_before(Refused("base: 'x' is neither"), "x"), ["runs"]),
        (
            "TryAgain",
            lambda: refused_before(TryAgain("the hub does not answer")),
            ["run", "configs/runs/demo.yaml", "--set", "training.rounds=3"],
        ),
        (
            "Cancelled",
            lambda: stage_tasks.with_next(
                Cancelled(message="stopped"), stage_tasks.go_on_command(runner(only="train"))
            ),
            ["rerun", RUN, "--only", "train"],
        ),
    ],
)
def test_every_end_names_the_next_command(name: str, made: Callable[[], State[Any]], words: list[str]) -> None:
    """However a run ended, its state's message ends with a command for this run and this store."""
    state = made()
    _, _, copied = str(state.message).rpartition("; next: ")
    assert (state.name, shlex.split(copied)) == (name, ["fleetune", *words, "--root", STORE])
    parsed(copied)
