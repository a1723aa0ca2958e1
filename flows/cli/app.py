"""The commands: each asks one question of the pipeline or the store, and prints the answer."""

import signal
from pathlib import Path
from typing import Annotated

import typer

from fleetune.contracts import wire
from fleetune.contracts.config.run import RunConfig
from fleetune.errors import TryAgain
from flows import configs
from flows.cli import tables
from flows.cli.asked import Asked, with_common
from flows.cli.compare import compare
from flows.cli.ending import Commands
from flows.cli.join import join
from flows.cli.results import answer, answer_stage, plan_of, results_of
from flows.cli.solve import solve
from flows.cli.watch import watching
from flows.setting import Setting, Wish

app = typer.Typer(cls=Commands, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
app.info.help = "Fine-tune a foundation model across the uneven machines you already own."

Config = Annotated[Path, typer.Argument(help="Run file, such as configs/runs/demo.yaml.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change the config: training.rounds=10. Repeatable."),
]
Until = Annotated[str | None, typer.Option("--until", metavar="STAGE", help="End after this stage.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would run, and why; write nothing.")]
Run = Annotated[str, typer.Argument(help="Id of a run, the beginning of one, or latest.")]
Stage = Annotated[str | None, typer.Argument(help="One stage of it.")]


@app.command()
@with_common
def run(asked: Asked, config: Config, sets: Sets = None, until: Until = None, dry_run: DryRun = False) -> None:
    """Run the pipeline by a run file; stages whose key is known are reused."""
    _conduct(asked, configs.load(config, sets or ()), Wish(until=until), dry_run)


@app.command()
@with_common
def rerun(
    asked: Asked,
    run: Run,
    from_stage: Annotated[
        str | None, typer.Option("--from", metavar="STAGE", help="Run again from this stage on.")
    ] = None,
    only: Annotated[str | None, typer.Option(metavar="STAGE", help="Run this stage and stop.")] = None,
    sets: Sets = None,
    dry_run: DryRun = False,
) -> None:
    """Run the config of an earlier run again, from a stage on and with changes if asked for."""
    found = asked.store().runs.load(run)
    config = configs.changed(found.config, sets or (), found.id)
    until = found.stages[-1].stage if config.fleet.simulated and only is None else None  # it ends where it ended
    _conduct(asked, config, Wish(from_stage=from_stage, only=only, until=until), dry_run)


@app.command()
@with_common
def runs(asked: Asked) -> None:
    """List all runs, newest first."""
    found = asked.store().runs.all()
    if asked.as_json:
        asked.answer({"root": asked.root, "runs": [tables.in_short(record) for record in found]})
    elif found:
        asked.out().print(tables.of_runs(found))
    else:
        asked.out().print(f"no runs in {asked.root}; start one with: fleetune run configs/runs/demo.yaml")


@app.command()
@with_common
def show(asked: Asked, run: Run, stage: Stage = None) -> None:
    """Show a run and what came of it, or one stage with its artifacts."""
    store = asked.store()
    found = store.runs.load(run)
    if stage is not None:
        one = found.stage(stage)
        artifacts = answer_stage(store, one)
        asked.answer(artifacts) if asked.as_json else tables.print_stage(asked.out(), one, artifacts)
    elif asked.as_json:
        asked.answer(answer(found, results_of(store, found)))
    else:
        tables.print_run(asked.out(), found, results_of(store, found))


@app.command()
@with_common
def verify(asked: Asked, run: Run) -> None:
    """Hash every file of a run's artifacts again; the first bad one is named."""
    store = asked.store()
    found = store.runs.load(run)
    checked = 0
    with watching(asked) as watch:
        for kind, digest in found.outputs.items():
            watch.doing("verify", kind, checked, len(found.outputs))
            store.verify(kind, digest)
            checked += 1
    if asked.as_json:
        asked.answer({"run": found.id, "artifacts": checked, "ok": True})
    else:
        asked.out().print(f"{found.id}: every file of its {checked} artifacts is what was stored")


@app.command()
@with_common
def diff(asked: Asked, run: Run, other: Run) -> None:
    """Tell how two runs differ: config, stages, scores."""
    store = asked.store()
    difference = compare(store, store.runs.load(run), store.runs.load(other))
    if asked.as_json:
        asked.answer(wire.dump(difference))
    else:
        tables.print_difference(asked.out(), difference)


@app.command()
@with_common
def doctor(asked: Asked) -> None:
    """Tell what this machine can do, in words; exit 75 when no run can work on it."""
    from flows.doctor import MISSING, examine

    findings = examine(asked.folder())
    missing = [finding.topic for finding in findings if finding.state == MISSING]
    if asked.as_json:
        asked.answer({"ok": not missing, "findings": [wire.dump(finding) for finding in findings]})
    else:
        asked.out().print(tables.of_findings(findings))
        if not missing:
            asked.out().print("this machine can run fleetune")
    if missing:
        raise TryAgain(f"no run can work here until these are put right: {', '.join(missing)}")


app.command()(solve)
app.command()(join)


def _conduct(asked: Asked, config: RunConfig, wish: Wish, dry_run: bool) -> None:
    """Run the pipeline while telling how it goes, then say what came of it."""
    from flows import finetune

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ended from outside: everything ends as with Ctrl-C
    store = asked.store()
    with watching(asked) as watch:
        setting = Setting(store=store, listen=watch.hear)
        record = finetune.run_with(setting, config, wish, dry_run)
    results = None if dry_run else results_of(store, record)
    if asked.as_json:
        asked.answer(answer(record, results))
    elif dry_run:
        asked.out().print(tables.of_stages(record))
    else:
        tables.print_end(asked.out(), record, results or plan_of(store, record))
