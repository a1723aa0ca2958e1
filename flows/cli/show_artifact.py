"""`fleetune show RUN WHAT`: one artifact drawn in the terminal, or one stage with its files."""

from typing import Any

from fleetune.contracts import json_io
from fleetune.errors import Refused
from fleetune.store import RunRecord, Store
from flows.artifact_content import EVENTS, FLEET, METRICS, PLAN, PROFILE, Content, producer, read_content
from flows.cli import drawings, tables
from flows.cli.options import CommonOptions
from flows.past_runs import stage_document

KINDS = (PLAN, FLEET, PROFILE, METRICS, EVENTS)


def show_artifact(options: CommonOptions, store: Store, run: RunRecord, what: str) -> None:
    """Print the artifact or stage that `what` names. Refused: any other name; the error lists the allowed ones.

    `plan` and `profile` are names of both: the stage is shown, and its artifact drawn below.
    """
    stages = [stage.stage for stage in run.stages]
    if what not in KINDS and what not in stages:
        drawn = ", ".join(KINDS)
        raise Refused(f"run {run.id}: no stage {what!r}; it has {', '.join(stages)}; artifacts that are drawn: {drawn}")
    content, problem = _content(store, run, what, is_stage=what in stages)
    made = run.stage(what) if what in stages else producer(run, what)
    if options.as_json:
        document: dict[str, Any] = {} if made is None else stage_document(store, made)
        if what in KINDS:
            document["content"] = None if content is None else json_io.dump(content)
        options.print_json(document)
        return
    out = options.console()
    if what in stages:
        tables.print_stage(out, run.stage(what), stage_document(store, run.stage(what)))
    elif made is not None:
        out.print(f"{what} of {run.id}, made by its stage {made.stage} ({made.why})")
    else:
        out.print(f"{what} of {run.id}, which has not ended well")
    if content is not None:
        drawings.draw(out, content)
    elif problem:
        out.print(problem)


def _content(store: Store, run: RunRecord, what: str, *, is_stage: bool) -> tuple[Content | None, str]:
    """The content to draw, and the reason why a stage has none that can be read."""
    if what not in KINDS or (is_stage and what not in run.outputs):
        return None, ""
    try:
        return read_content(store, run, what), ""
    except Refused as error:
        if not is_stage:
            raise
        return None, f"cannot be drawn: {error}"
