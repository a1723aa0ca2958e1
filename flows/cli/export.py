"""The command `export`."""

from pathlib import Path
from typing import Annotated

import typer

from fleetune.contracts.record import record
from fleetune.errors import Refused
from flows.cli.options import CommonOptions, with_options

EXPORTS = Path("exports")

PastRun = Annotated[str, typer.Argument(help="A past run that was trained: its id or its beginning, latest, previous.")]
To = Annotated[Path | None, typer.Option("--to", metavar="PATH", help="New folder (or file). [exports/RUN]")]
Merge = Annotated[bool, typer.Option("--merge", help="Add the adapter's weights to its base: one model.")]
Gguf = Annotated[bool, typer.Option("--gguf", help="One GGUF file, by llama.cpp's converter on the PATH.")]
Push = Annotated[
    str, typer.Option("--push", metavar="OWNER/NAME", help="Upload it to the Hugging Face hub, too: private if new.")
]


@record
class ExportOptions(CommonOptions):
    """The options of `export`."""

    to: To = None
    merge: Merge = False
    gguf: Gguf = False
    push: Push = ""


@with_options(ExportOptions)
def export(options: ExportOptions, run: PastRun = "latest") -> None:
    """Write the trained model with a model card into a folder of its own, for transformers, PEFT or llama.cpp."""
    from flows.hand_over.export import check_token, push, to_gguf
    from flows.hand_over.export import export as export_folder
    from flows.hand_over.proof import is_there
    from flows.hand_over.trained_run import trained_run

    if options.gguf and options.push:
        raise Refused("--gguf and --push: give one of them; --push uploads a folder")
    store, pushed = options.store(), ""
    found = trained_run(store, run)
    target = options.to or EXPORTS / (f"{found.run.id}.gguf" if options.gguf else found.run.id)
    if options.gguf:
        written = to_gguf(found, target)
    elif options.push:
        from huggingface_hub import HfApi

        check_token(options.push, api := HfApi())
        there = is_there(store, found, target, options.merge)  # from a push that failed
        written = target if there else export_folder(found, target, options.merge)
        pushed = push(written, options.push, api)
    else:
        written = export_folder(found, target, options.merge)
    if options.as_json:
        options.print_json({"run": found.run.id, "path": str(written.resolve()), "pushed": pushed})
        return
    options.console().print(f"model   {written.resolve()}")
    if pushed:
        options.console().print(f"pushed  {pushed}")
