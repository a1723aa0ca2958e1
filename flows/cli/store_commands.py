"""The commands that look into the store: `runs`, `show`, `diff`, `verify`, `models`, and `gc`: it removes old runs."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.options import CommonOptions, with_common_options

if TYPE_CHECKING:
    from fleetune.store import PromotionDecision, Store


Run = Annotated[
    str,
    typer.Argument(
        help="Id of a run or its beginning; latest, previous; the name of a run file; ~N after it: the N-th before. "
        "Evaluations, comparisons, --only and refused runs: by id."
    ),
]
What = Annotated[
    str | None, typer.Argument(help="plan, fleet, profile, metrics or events: drawn; or a stage: its files and log.")
]
Verified = Annotated[str, typer.Argument(metavar="RUN|FOLDER", help="A run, or the folder of an exported model.")]
LISTED = 50
"""Runs that are listed unless --limit says otherwise."""


@with_common_options
def runs(
    options: CommonOptions,
    name: Annotated[
        str, typer.Option(metavar="NAME", help="Only runs of this run file; `demo*` matches several.")
    ] = "",
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATE", help="Only runs in this state: running, done, failed, refused, interrupted. Repeatable."
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=0, metavar="N", help=f"At most so many; 0: all. [{LISTED}; all with --json]")
    ] = None,
) -> None:
    """List runs, newest first."""
    from flows.cli import tables
    from flows.past_runs import list_runs

    most = limit if limit is not None else 0 if options.as_json else LISTED
    listed = list_runs(options.store(), name=name, states=tuple(state or ()), limit=most)
    out = options.console()
    if options.as_json:
        found = [tables.run_summary(record) for record in listed.runs]
        options.print_json({"root": options.root, "runs": found, "more": listed.more})
    elif listed.runs:
        tables.print_runs(out, listed.runs)
        if listed.more:
            out.print(f"and {listed.more} more; --limit 0 lists all")
    elif name or state:
        out.print(f"no such runs in {options.root}")
    else:
        out.print(f"no runs in {options.root}; start one with: fleetune run configs/runs/demo.yaml")


@with_common_options
def show(options: CommonOptions, run: Run, what: What = None) -> None:
    """Show a run and its results; draw one of its artifacts; or show one stage with its files."""
    from flows.cli import tables
    from flows.past_runs import load_results, run_document

    store = options.store()
    found = store.runs.load(run)
    if what is not None:
        from flows.cli.drawings import show_artifact

        show_artifact(options, store, found, what)
    elif options.as_json:
        options.print_json(run_document(found, load_results(store, found)))
    else:
        tables.print_run(options.console(), found, load_results(store, found))


@with_common_options
def verify(options: CommonOptions, run: Verified = "latest") -> None:
    """Hash every file of a run's artifacts again, and compute its receipt anew; the first link that breaks is named.
    Of an exported folder: prove that it is what the run trained."""
    from fleetune.formatting import rate, size
    from flows.cli.progress_display import show_progress
    from flows.hand_over.proof import is_exported, prove
    from flows.receipt import check_run, named_artifacts

    store, notes = options.store(), list[str]()
    if is_exported(run):
        name = prove(store, Path(run), notes.append)
        if options.as_json:
            return options.print_json({"folder": run, "run": name, "notes": notes, "ok": True})
        return options.console().print(
            "\n".join([*notes, f"{run}: every file of its model is what run {name} trained"])
        )
    found = store.runs.load(run)
    named, begun = named_artifacts(found), list[str]()
    begun_s = time.monotonic()
    with show_progress(options) as listener:

        def hashing(kind: str) -> None:
            listener.report("verify", kind, len(begun), len(named))
            begun.append(kind)

        receipt = check_run(store, found, notes.append, hashing)
    checked = len(named)
    files = [file for artifact in named for file in store.manifest(*artifact).files]
    hashed_bytes = sum(file.bytes for file in files)
    speed_bytes_per_s = hashed_bytes / max(time.monotonic() - begun_s, 1e-9)
    links = [link.name for link in receipt.links] if receipt else []
    if options.as_json:
        told = {"receipt": links, **({"notes": notes} if notes else {})} if links else {}
        options.print_json({"run": found.id, "artifacts": checked, "bytes": hashed_bytes, "ok": True, **told})
    else:
        said = f"{size(hashed_bytes)}, {rate(speed_bytes_per_s)}"
        out = options.console()
        out.print(f"{found.id}: every file of its {checked} artifacts is what was stored ({said})")
        out.print(f"its receipt holds: {', '.join(links)}" if links else "it has no receipt, which finished runs write")
        for note in notes:
            out.print(note)


@with_common_options
def diff(options: CommonOptions, run: Run, other: Run) -> None:
    """Show the differences between two runs: config, stages, scores. latest and previous are runs that are done."""
    from fleetune.contracts import json_io
    from flows.cli import tables
    from flows.past_runs import diff_runs

    store = options.store()
    first, second = (store.runs.load(name, done=True) for name in (run, other))
    difference = diff_runs(store, first, second)
    if options.as_json:
        options.print_json(json_io.dump(difference))
        return
    out = options.console()
    if any(store.runs.load(name).id != found.id for name, found in ((run, first), (other, second))):
        newest = next(one for one in store.runs.newest_first() if one.state != "done")
        out.print(f"{first.id} and {second.id}: runs that are not done are not counted ({newest.id} is {newest.state})")
    tables.print_difference(out, difference)


@with_common_options
def gc(
    options: CommonOptions,
    keep: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", help="Runs that stay: the N newest, N that are done, N that were trained of each name."
        ),
    ] = 20,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be removed; remove nothing.")] = False,
) -> None:
    """Remove old runs, and the artifacts and unfinished work that only they need."""
    from fleetune.contracts import json_io
    from fleetune.store.garbage import remove_old_runs
    from flows.cli import tables

    def pause(seconds: float) -> bool:
        time.sleep(seconds)
        return False

    def waiting(holder: str) -> None:
        typer.echo(f"waits while a run takes artifacts from the store: {holder}", err=True)

    done = remove_old_runs(options.store(), keep, dry_run=dry_run, pause=pause, waiting=waiting)
    if options.as_json:
        options.print_json({**json_io.dump(done), "freed_bytes": done.freed_bytes})
    else:
        tables.print_removal(options.console(), done)


@with_common_options
def models(options: CommonOptions) -> None:
    """List the models that were promoted, newest first: from which run, on which data, with which scores."""
    from fleetune.contracts import json_io
    from flows.cli import tables

    store = options.store()
    promoted = store.promotions.promoted()
    if options.as_json:
        found = [{**json_io.dump(one), "model": _folder(store, one)} for one in promoted]
        options.print_json({"root": options.root, "models": found})
    elif promoted:
        tables.print_promotions(options.console(), promoted, [_folder(store, one) for one in promoted])
    else:
        options.console().print(f"no promoted models in {options.root}; a run file with `promote` makes them")


def _folder(store: "Store", decision: "PromotionDecision") -> str | None:
    """Path of the Hugging Face folder or PEFT adapter; None when it is gone from the store."""
    from flows.promoted_start import model_folder

    if not store.has("checkpoint", decision.checkpoint):
        return None
    return str(model_folder(store.place("checkpoint", decision.checkpoint)))
