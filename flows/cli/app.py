"""The commands: each makes one call of the pipeline or the store and prints the result.

Importing this module defines options only; each command imports what it needs, so that help appears at once.
"""

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fleetune.errors import TryAgain
from flows.cli.compare import compare
from flows.cli.exit_codes import CommandGroup, Interrupted
from flows.cli.join import join
from flows.cli.models import models
from flows.cli.options import CommonOptions, with_common_options
from flows.cli.service import down, up
from flows.cli.solve import solve

if TYPE_CHECKING:
    from fleetune.contracts.run_config import RunConfig
    from flows.context import StageSelection

HELP = {"help_option_names": ["-h", "--help"]}
RESUME_HINT = "stopped; the same command goes on from what is finished"

app = typer.Typer(cls=CommandGroup, pretty_exceptions_enable=False, context_settings=HELP)
app.info.help = "Fine-tune a foundation model across the uneven machines you already own."

Config = Annotated[Path, typer.Argument(help="Run file, such as configs/runs/demo.yaml.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change the config: training.rounds=10. Repeatable."),
]
Until = Annotated[str | None, typer.Option("--until", metavar="STAGE", help="End after this stage.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show which stages would run, and why; write nothing.")]
Run = Annotated[
    str,
    typer.Argument(
        help="Id of a run or its beginning; latest, previous; the name of a run file; ~N after it: the N-th before."
    ),
]
Stage = Annotated[str | None, typer.Argument(help="One stage of the run.")]


def _version(asked: bool) -> None:
    if asked:
        from importlib import metadata

        typer.echo(f"fleetune {metadata.version('fleetune')}")
        raise typer.Exit


@app.callback()
def _(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of the program itself."""


@app.command()
@with_common_options
def run(
    options: CommonOptions, config: Config, sets: Sets = None, until: Until = None, dry_run: DryRun = False
) -> None:
    """Run the pipeline by a run file; stages whose key is known are reused."""
    from flows import configs
    from flows.context import StageSelection

    _run_pipeline(options, configs.load(config, sets or ()), StageSelection(until=until), dry_run)


@app.command()
@with_common_options
def rerun(
    options: CommonOptions,
    run: Run,
    from_stage: Annotated[
        str | None, typer.Option("--from", metavar="STAGE", help="Run again from this stage on.")
    ] = None,
    only: Annotated[str | None, typer.Option(metavar="STAGE", help="Run this stage and stop.")] = None,
    sets: Sets = None,
    dry_run: DryRun = False,
) -> None:
    """Run the config of an earlier run again, from a stage on and with changes if asked for."""
    from flows import configs
    from flows.context import StageSelection

    found = options.store().runs.load(run)
    config = configs.with_changes(found.config, sets or (), found.id)
    until = found.stages[-1].stage if config.fleet.simulated and only is None else None  # it ends where it ended
    again = f"fleetune rerun ID{f' --only {only}' if only else ''}{options.root_option()}"
    selection = StageSelection(from_stage=from_stage, only=only, until=until, rerun=found.id)
    _run_pipeline(options, config, selection, dry_run, again)


@app.command()
@with_common_options
def runs(options: CommonOptions) -> None:
    """List all runs, newest first."""
    from flows.cli import tables

    found = options.store().runs.all()
    if options.as_json:
        options.print_json({"root": options.root, "runs": [tables.run_summary(record) for record in found]})
    elif found:
        tables.print_runs(options.console(), found)
    else:
        options.console().print(f"no runs in {options.root}; start one with: fleetune run configs/runs/demo.yaml")


@app.command()
@with_common_options
def show(options: CommonOptions, run: Run, stage: Stage = None) -> None:
    """Show a run and its results, or one stage with its artifacts."""
    from flows.cli import tables
    from flows.results import load_results, run_document, stage_document

    store = options.store()
    found = store.runs.load(run)
    if stage is not None:
        one = found.stage(stage)
        artifacts = stage_document(store, one)
        options.print_json(artifacts) if options.as_json else tables.print_stage(options.console(), one, artifacts)
    elif options.as_json:
        options.print_json(run_document(found, load_results(store, found)))
    else:
        tables.print_run(options.console(), found, load_results(store, found))


@app.command()
@with_common_options
def verify(options: CommonOptions, run: Run) -> None:
    """Hash every file of a run's artifacts again; the first bad one is named."""
    from flows.cli.progress_display import show_progress

    store = options.store()
    found = store.runs.load(run)
    checked = 0
    with show_progress(options) as listener:
        for kind, digest in found.outputs.items():
            listener.report("verify", kind, checked, len(found.outputs))
            store.verify(kind, digest)
            checked += 1
    if options.as_json:
        options.print_json({"run": found.id, "artifacts": checked, "ok": True})
    else:
        options.console().print(f"{found.id}: every file of its {checked} artifacts is what was stored")


@app.command()
@with_common_options
def diff(options: CommonOptions, run: Run, other: Run) -> None:
    """Show the differences between two runs: config, stages, scores."""
    from fleetune.contracts import json_io
    from flows.cli import tables
    from flows.results import diff_runs

    store = options.store()
    difference = diff_runs(store, store.runs.load(run), store.runs.load(other))
    if options.as_json:
        options.print_json(json_io.dump(difference))
    else:
        tables.print_difference(options.console(), difference)


@app.command()
@with_common_options
def doctor(options: CommonOptions) -> None:
    """Check what this machine can do; exit 75 when no run can work on it."""
    from fleetune.contracts import json_io
    from flows.cli import tables
    from flows.doctor import MISSING, check_machine

    findings = check_machine(options.folder())
    missing = [finding.topic for finding in findings if finding.state == MISSING]
    if options.as_json:
        options.print_json({"ok": not missing, "findings": [json_io.dump(finding) for finding in findings]})
    else:
        options.console().print(tables.findings_table(findings))
        if not missing:
            options.console().print("this machine can run fleetune")
    if missing:
        raise TryAgain(f"no run can work here until these are put right: {', '.join(missing)}")


@app.command()
def cite(config: Config, sets: Sets = None) -> None:
    """Print BibTeX entries of the papers that a run file uses: its strategy's, and those of its options."""
    from fleetune.planning import citations
    from flows import configs

    typer.echo("\n\n".join(citations(configs.load(config, sets or ()).strategy)))


app.command()(compare)
app.command()(solve)
app.command()(join)
app.command()(up)
app.command()(down)
app.command()(models)


def _run_pipeline(
    options: CommonOptions, config: "RunConfig", selection: "StageSelection", dry_run: bool, again: str = ""
) -> None:
    """Run the pipeline with a progress display, then print its results.

    `again` is the command that continues an interrupted run when the same command would not; ID stands for the run.
    """
    from flows import api
    from flows.cli import tables
    from flows.cli.progress_display import show_progress
    from flows.context import RunContext
    from flows.results import load_plan, load_results, plan_report_path, run_document

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends everything as Ctrl-C does
    store = options.store()
    with show_progress(options) as listener:
        context = RunContext(store=store, listen=listener.on_event)
        try:
            record = api.run_with(context, config, selection, dry_run)
        except KeyboardInterrupt:
            raise Interrupted(_resume_hint(listener.run, again)) from None
        except Exception as error:
            for line in tables.failure_lines(store, listener.run):
                error.add_note(line)
            raise
    results = None if dry_run else load_results(store, record)
    if options.as_json:
        options.print_json(run_document(record, results))
    elif dry_run:
        options.console().print(tables.stages_table(record))
    else:
        tables.print_run_end(
            options.console(), record, results or load_plan(store, record), plan_report_path(store, record)
        )


def _resume_hint(run: str, again: str) -> str:
    if not run:
        return "stopped before the run began"
    return f"stopped; go on with: {again.replace('ID', run)}" if again else RESUME_HINT
