"""The commands: each makes one call of the pipeline or the store and prints the result.

Importing this module defines options only; each command imports what it needs, so that help appears at once.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fleetune.contracts.record import record
from fleetune.errors import TryAgain
from flows.cli.chaos import chaos
from flows.cli.data import data
from flows.cli.evaluate import compare, evaluate
from flows.cli.exit_codes import CommandGroup, Interrupted
from flows.cli.export import export
from flows.cli.join import join
from flows.cli.options import CommonOptions, Sets, with_common_options, with_options
from flows.cli.predict import predict
from flows.cli.service import down, up
from flows.cli.solve import solve
from flows.cli.store_commands import Run, diff, gc, models, runs, show, verify
from flows.cli.work import WORK

if TYPE_CHECKING:
    from fleetune.contracts.run_config import RunConfig
    from flows.context import StageSelection

HELP = {"help_option_names": ["-h", "--help"]}
RESUME_HINT = "stopped; the same command goes on from what is finished"

app = typer.Typer(cls=CommandGroup, pretty_exceptions_enable=False, context_settings=HELP)
app.info.help = "Fine-tune a foundation model across the uneven machines you already own."

Config = Annotated[Path, typer.Argument(help="Run file, such as configs/runs/demo.yaml, or its name there: demo.")]
Until = Annotated[str | None, typer.Option("--until", metavar="STAGE", help="End after this stage.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show which stages would run, and why; write nothing.")]
Force = Annotated[
    bool, typer.Option("--force", help="Run stages even where nothing has changed: all, or those from --from on.")
]


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


@record
class RunOptions(CommonOptions):
    """The options of commands that run the pipeline."""

    sets: Sets = None
    force: Force = False
    dry_run: DryRun = False


@app.command()
@with_options(RunOptions)
def run(options: RunOptions, config: Config, until: Until = None) -> None:
    """Run the pipeline by a run file; stages whose key is known are reused."""
    from flows import configs
    from flows.context import StageSelection
    from flows.form import find_run_file

    selection = StageSelection(until=until, force=options.force)
    _run_pipeline(options, configs.load(find_run_file(str(config)) or config, options.sets or ()), selection)


@app.command()
@with_options(RunOptions)
def rerun(
    options: RunOptions,
    run: Run,
    from_stage: Annotated[
        str | None, typer.Option("--from", metavar="STAGE", help="Run again from this stage on.")
    ] = None,
    only: Annotated[str | None, typer.Option(metavar="STAGE", help="Run this stage and stop.")] = None,
    until: Until = None,
) -> None:
    """Run the config of an earlier run again, from a stage on and with changes if asked for."""
    from flows import configs
    from flows.context import StageSelection
    from flows.promoted_start import in_this_store

    store = options.store()
    found = store.runs.load(run)
    config = configs.with_changes(in_this_store(store, found.config), options.sets or (), found.id)
    if config.fleet.simulated and only is None and until is None:
        until = found.stages[-1].stage  # it ends where it ended
    ends = f" --only {only}" if only else f" --until {until}" if until else ""
    again = f"fleetune rerun ID{ends}{options.root_option()}"
    selection = StageSelection(from_stage=from_stage, only=only, until=until, rerun=found.id, force=options.force)
    _run_pipeline(options, config, selection, again)


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
    from flows.form import find_run_file

    typer.echo("\n\n".join(citations(configs.load(find_run_file(str(config)) or config, sets or ()).strategy)))


app.command()(runs)
app.command()(show)
app.command()(diff)
app.command()(verify)
app.command()(gc)
app.command()(compare)
app.command()(data)
app.command()(evaluate)
app.command()(chaos)
app.command()(solve)
app.command()(join)
app.command()(up)
app.command()(down)
app.command()(models)
app.command()(export)
app.command()(predict)


def _run_pipeline(options: RunOptions, config: "RunConfig", selection: "StageSelection", again: str = "") -> None:
    """Run the pipeline with a progress display, then print its results.

    `again` is the command that continues an interrupted run when the same command would not; ID stands for the run.
    """
    from flows.cli import tables
    from flows.cli.progress_display import show_progress
    from flows.context import RunContext
    from flows.interrupts import end_on_sigterm
    from flows.past_runs import load_plan, load_results, plan_report_path, run_document

    end_on_sigterm()
    store = options.store()
    with show_progress(options) as listener:
        context = RunContext(store=store, listen=listener.on_event)
        try:
            record = WORK.get().run_with(context, config, selection, options.dry_run)
        except KeyboardInterrupt:
            raise Interrupted(_resume_hint(listener.run, again)) from None
        except Exception as error:
            for line in tables.failure_lines(store, listener.run):
                error.add_note(line)
            raise
    results = None if options.dry_run else load_results(store, record)
    if options.as_json:
        options.print_json(run_document(record, results))
    elif options.dry_run:
        options.console().print(tables.stages_table(record))
    else:
        tables.print_run_end(
            options.console(), record, results or load_plan(store, record), plan_report_path(store, record)
        )


def _resume_hint(run: str, again: str) -> str:
    if not run:
        return "stopped before the run began"
    return f"stopped; go on with: {again.replace('ID', run)}" if again else RESUME_HINT
