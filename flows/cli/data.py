"""`fleetune data`: shows the data of a run file as the model will see them."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from fleetune.contracts.record import record
from fleetune.errors import Refused
from flows.cli.options import CommonOptions, Sets, with_options

if TYPE_CHECKING:
    from fleetune.contracts.run_config import RunConfig
    from fleetune.data.preview import DataPreview, SamplePreview, SplitPreview

OPEN, CLOSE = "⟦", "⟧"
MOST_LABELS = 12
"""More classes are not listed."""

Config = Annotated[Path, typer.Argument(help="Run file, such as configs/runs/demo.yaml, or its name there: demo.")]
Samples = Annotated[int, typer.Option("--samples", metavar="N", help="Show so many samples.")]


@record
class DataOptions(CommonOptions):
    """The options of `data`."""

    sets: Sets = None
    samples: Samples = 3


@with_options(DataOptions)
def data(options: DataOptions, config: Config) -> None:
    """Show the data of a run file as the model sees them: lengths, padding, and what carries loss. Runs no stage."""
    from fleetune.contracts import json_io
    from flows import configs
    from flows.form import find_run_file

    if options.samples < 0:
        raise Refused(f"--samples {options.samples}: give a number of at least 0")
    found = _preview(configs.load(find_run_file(str(config)) or config, options.sets or ()), options.samples)
    if options.as_json:
        return options.print_json(json_io.dump(found))
    console = options.console()
    for line in _lines(found):
        console.print(line)


def _preview(config: "RunConfig", samples: int) -> "DataPreview":
    """Prepare the data as the stage does, in a folder that is removed."""
    from fleetune.data.job import Preparation
    from fleetune.data.prepared_data import PreparedData
    from fleetune.data.preview import preview
    from fleetune.data.writer import write_data
    from fleetune.models.model_inputs import input_spec

    with TemporaryDirectory(prefix="fleetune-") as folder:
        written = Path(folder) / "data"
        write_data(Preparation(request=config.data, spec=input_spec(config.model), seed=config.seed), written)
        found = preview(PreparedData(written), samples)
    if not config.data.local:
        return found
    note = f"what lies on {', '.join(config.data.local)} (data.local) is not shown, because it stays there"
    return replace(found, notes=(*found.notes, note))


def _lines(found: "DataPreview") -> Iterator[str]:
    yield f"{found.source}, for {found.task}"
    for split in found.splits:
        yield from _split_lines(split)
    for note in found.notes:
        yield f"note: {note}"
    if any(piece.loss for sample in found.samples for piece in sample.pieces):
        yield f"\nThe first samples to train on; what carries loss stands between {OPEN} and {CLOSE}:"
    elif found.samples:
        yield "\nThe first samples to train on:"
    for number, sample in enumerate(found.samples, start=1):
        yield from _sample_lines(number, sample)


def _split_lines(split: "SplitPreview") -> Iterator[str]:
    packed = f" in {split.rows:,} sequences" if split.rows < split.samples else ""
    yield f"\n{split.name}: {split.samples:,} samples{packed}"
    if split.tokens:
        yield "  tokens of a sample: " + ", ".join(f"{name} {tokens:,}" for name, tokens in split.tokens.items())
    if split.loss_share is not None:
        yield f"  tokens that carry loss: {split.loss_share:.1%}"
    if split.padding_share is not None:
        yield f"  wasted on padding: {split.padding_share:.1%} of the tokens that are computed"
    if 0 < len(split.labels) <= MOST_LABELS:
        yield "  classes: " + ", ".join(f"{label} {samples:,}" for label, samples in split.labels.items())
    elif split.labels:
        fewest, most = min(split.labels.values()), max(split.labels.values())
        yield f"  classes: {len(split.labels)}, with {fewest:,} to {most:,} samples"


def _sample_lines(number: int, sample: "SamplePreview") -> Iterator[str]:
    size = " x ".join(map(str, sample.shape)) if sample.shape else f"{sample.tokens} tokens"
    loss = f", {sample.loss_tokens} with loss" if sample.loss_tokens else ""
    label = f", class {sample.label}" if sample.label else ""
    yield f"\n{number}. (row {sample.row}) {size}{loss}{label}"
    if sample.pieces:
        yield "".join(f"{OPEN}{piece.text}{CLOSE}" if piece.loss else piece.text for piece in sample.pieces)
