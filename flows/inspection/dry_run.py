"""The page of a dry run: what would run, and why."""

from fleetune.store import RunRecord
from flows import configs
from flows.inspection.difference import settings_table
from flows.inspection.links import StoreLinks
from flows.inspection.page import Page, page, plain, table
from flows.past_runs import setting_differences
from flows.tracking import reason

WOULD = {"ran": "run", "reused": "be reused"}


def prediction(planned: RunRecord, base: RunRecord | None, links: StoreLinks) -> Page:
    """Return the page of a predicted run; `base` is the run that it would be compared with."""
    rows = [
        (
            f"**{plain(stage.stage)}**",
            WOULD.get(stage.how, ""),
            plain(reason(stage.why)),
            " ".join(links.artifact(kind, digest) for kind, digest in stage.outputs.items()),
        )
        for stage in planned.stages
    ]
    parts = [
        f"# {plain(configs.title(planned.config))}: a dry run",
        "Nothing was run. Measurements are assumed to be what they were.",
        table(("stage", "would", "why", "stored"), rows),
    ]
    if base is not None:
        changed = settings_table(setting_differences(base, planned)) or "No setting has changed."
        parts += [f"## Changed since {links.run(base.id)}", changed]
    return page(parts, description(planned))


def description(planned: RunRecord) -> str:
    """What would happen, in a line: `would run plan, train and reuse discover`."""
    said = []
    for how, word in (("ran", "run"), ("reused", "reuse")):
        names = [stage.stage for stage in planned.stages if stage.how == how]
        if names:
            said.append(f"{word} {', '.join(names) if len(names) < len(planned.stages) else 'every stage'}")
    return f"would {' and '.join(said)}"
