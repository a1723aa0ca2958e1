"""The command `predict`."""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fleetune.contracts.record import record
from fleetune.contracts.tasks import TEXT_TASKS
from fleetune.errors import Refused
from fleetune.formatting import visible
from flows.cli.export import PastRun
from flows.cli.options import CommonOptions, with_options

if TYPE_CHECKING:
    from fleetune.evaluation.prediction import Prediction

SHOWN = 3
"""Most classes of a prediction on the screen."""

Texts = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TEXT]...", help="Texts, or images; without any, and without --file: lines of the input."),
]
File = Annotated[
    list[Path] | None,
    typer.Option("--file", metavar="PATH", help="Rows in the run's columns, lines (.txt) or images; repeatable."),
]
NewTokens = Annotated[int, typer.Option("--new-tokens", metavar="N", help="Most tokens to write (causal-lm, seq2seq).")]


@record
class PredictOptions(CommonOptions):
    """The options of `predict`."""

    file: File = None
    new_tokens: NewTokens = 64


@with_options(PredictOptions)
def predict(options: PredictOptions, run: PastRun = "latest", texts: Texts = None) -> None:
    """Ask the trained model of a run: classes of texts and images, how texts and chats go on, what texts become."""
    from fleetune.contracts import json_io
    from flows.hand_over.predict import Asked
    from flows.hand_over.predict import predict as ask
    from flows.hand_over.trained_run import trained_run

    found = trained_run(options.store(), run)
    given = texts or ()
    file = next(filter(os.path.isfile, given), None)
    if file is not None and found.run.config.model.task in TEXT_TASKS:
        raise Refused(f"{file}: a file of this name is here; give --file {file}, or give such words by the input")
    if not given and not options.file and not sys.stdin.isatty():
        given = _lines(sys.stdin.buffer.read())
    asked = Asked(texts=given, files=options.file or (), new_tokens=options.new_tokens)
    predictions = ask(found, asked)
    if options.as_json:
        options.print_json({"run": found.run.id, "predictions": [json_io.dump(one) for one in predictions]})
    else:
        _print(options, predictions)


def _lines(content: bytes) -> list[str]:
    from fleetune.data.unlabelled import text_lines

    try:
        return [line for line in text_lines(content) if line.strip()]
    except UnicodeDecodeError as error:
        raise Refused(f"the input is not UTF-8 ({error}); give lines of text in UTF-8") from None


def _print(options: PredictOptions, predictions: "Iterable[Prediction]") -> None:
    console = options.console()
    for one in predictions:
        if one.value is not None:
            console.print(f"{one.value:.4g}  {' '.join(one.input.split())}")
        elif one.probabilities:
            ranked = list(one.probabilities.items())[:SHOWN]
            said = ", ".join(f"{label} {probability:.1%}" for label, probability in ranked)
            console.print(f"{said}  {' '.join(one.input.split())}")
        else:
            typer.echo(visible(f"> {one.input}\n{one.text}\n"))  # a console makes spaces of tabs
