"""The command `evaluate`."""

import signal
from typing import Annotated

import typer

from fleetune.contracts.record import record
from flows.cli.exit_codes import Interrupted
from flows.cli.options import CommonOptions, with_options

PastRun = Annotated[str, typer.Argument(help="A past run that was trained: its id or its beginning, latest, previous.")]
Data = Annotated[
    str, typer.Option(metavar="NAME", help="Other data with the same classes: the name of a file in configs/data.")
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="data.KEY=VALUE", help="Change the data: data.source=reviews.csv. Repeatable."),
]
Force = Annotated[bool, typer.Option("--force", help="Evaluate even if nothing has changed.")]


@record
class EvaluateOptions(CommonOptions):
    """The options of `evaluate`."""

    data: Data = ""
    sets: Sets = None
    force: Force = False


@with_options(EvaluateOptions)
def evaluate(options: EvaluateOptions, run: PastRun = "latest") -> None:
    """Evaluate the checkpoint of a past run again, on its own test data or on the test split of other data."""
    from flows import api
    from flows.cli import tables
    from flows.cli.progress_display import show_progress
    from flows.context import RunContext
    from flows.form.choices import AS_GIVEN
    from flows.past_runs import load_results, plan_report_path, run_document
    from flows.reevaluation import EvaluationRequest, reevaluation

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends everything as Ctrl-C does
    store, sets = options.store(), tuple(options.sets or ())
    asked = EvaluationRequest(run=run, data=options.data or AS_GIVEN, changes=sets, force=options.force)
    found = reevaluation(asked, store)
    with show_progress(options) as listener:
        try:
            record = api.run_made(RunContext(store=store, listen=listener.on_event), found.runner)
        except KeyboardInterrupt:
            raise Interrupted("stopped; the same command goes on from what is finished") from None
    results = load_results(store, record)
    if options.as_json:
        options.print_json(run_document(record, results))
    else:
        tables.print_run_end(options.console(), record, results, plan_report_path(store, record))
