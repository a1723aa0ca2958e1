"""The commands `evaluate` and `compare`."""

from typing import TYPE_CHECKING, Annotated

import typer

from fleetune.contracts.record import record
from flows.cli.exit_codes import Interrupted
from flows.cli.options import CommonOptions, Sets, with_common_options, with_options
from flows.cli.work import WORK
from flows.interrupts import end_on_sigterm

if TYPE_CHECKING:
    from rich.console import Console

    from flows.comparison.pages import Table
    from flows.comparison.record import Comparison


PastRun = Annotated[str, typer.Argument(help="A past run that was trained: its id or its beginning, latest, previous.")]
Data = Annotated[
    str, typer.Option(metavar="NAME", help="Other data with the same classes: the name of a file in configs/data.")
]
DataChanges = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="data.KEY=VALUE", help="Change the data: data.source=reviews.csv. Repeatable."),
]
Force = Annotated[bool, typer.Option("--force", help="Evaluate even if nothing has changed.")]


@record
class EvaluateOptions(CommonOptions):
    """The options of `evaluate`."""

    data: Data = ""
    sets: DataChanges = None
    force: Force = False


@with_options(EvaluateOptions)
def evaluate(options: EvaluateOptions, run: PastRun = "latest") -> None:
    """Evaluate the checkpoint of a past run again, on its own test data or on other data.

    What --set data.source=... names is scored whole, or its test split where it has one; of --data NAME, the rows that
    a training on it would test on.
    """
    from flows.cli import tables
    from flows.cli.progress_display import show_progress
    from flows.context import RunContext
    from flows.form import AS_GIVEN
    from flows.past_runs import load_results, plan_report_path, run_document
    from flows.reevaluation import EvaluationRequest, reevaluation

    end_on_sigterm()
    store, sets = options.store(), tuple(options.sets or ())
    asked = EvaluationRequest(run=run, data=options.data or AS_GIVEN, changes=sets, force=options.force)
    found, work = reevaluation(asked, store), WORK.get()
    with show_progress(options) as listener:
        try:
            record = work.run_made(
                RunContext(store=store, listen=listener.on_event), lambda told: found.runner(told, work.run_with)
            )
        except KeyboardInterrupt:
            raise Interrupted("stopped; the same command goes on from what is finished") from None
    results = load_results(store, record)
    if options.as_json:
        options.print_json(run_document(record, results))
    else:
        tables.print_run_end(options.console(), record, results, plan_report_path(store, record))


Base = Annotated[str, typer.Argument(help="Run file, such as configs/runs/demo.yaml, or a past run.")]
Strategies = Annotated[
    str, typer.Option(metavar="NAME,NAME", help="Names of files in configs/strategies, separated by commas.")
]
Train = Annotated[bool, typer.Option("--train", help="Train every strategy that can be trained, and measure it.")]
TargetLoss = Annotated[
    float, typer.Option(min=0, help="Loss to reach; 0: the lowest that every trained strategy reached.")
]


@with_common_options
def compare(
    options: CommonOptions,
    base: Base,
    strategies: Strategies = "asteroid,dp,single",
    train: Train = False,
    target_loss: TargetLoss = 0.0,
    sets: Sets = None,
) -> None:
    """Compare strategies on one fleet: which method for my devices?"""
    from fleetune.contracts import json_io
    from flows.cli.progress_display import show_progress
    from flows.comparison import archive
    from flows.comparison.comparer import Comparer, CompareRequest
    from flows.context import RunContext

    end_on_sigterm()
    request = CompareRequest(
        base=base,
        strategies=tuple(name.strip() for name in strategies.split(",") if name.strip()),
        target_loss=target_loss,
        changes=tuple(sets or ()),
        train=train,
    )
    store = options.store()
    with show_progress(options) as listener:
        comparer = Comparer(RunContext(store=store, listen=listener.on_event), request, WORK.get().run_with)
        try:
            found = comparer.compare()
        except KeyboardInterrupt:
            raise Interrupted("stopped; the same command goes on from what is finished") from None
    if options.as_json:
        options.print_json(json_io.dump(found))
    else:
        print_comparison(options.console(), found, archive.page_path(store, found.id))


def print_comparison(console: "Console", comparison: "Comparison", page: str) -> None:
    """Print a comparison: the answer, its tables, a sentence for each strategy that is left out, and its page."""
    from flows.comparison.pages import memory_table, notes, strategy_table, verdict

    console.print(_table(strategy_table(comparison)))
    console.print(_table(memory_table(comparison)))
    for note in notes(comparison):
        console.print(f"- {note}")
    console.print(f"{verdict(comparison)}.")
    console.print(f"page    {page}")


def _table(table: "Table") -> object:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as Grid

    grid = Grid(box=SIMPLE_HEAD, pad_edge=False)
    for heading in table.headings:
        grid.add_column(heading, overflow="fold")
    for row in table.rows:
        grid.add_row(*row)
    return grid
