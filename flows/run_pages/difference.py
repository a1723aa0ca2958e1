"""The difference of a run from an earlier one, as part of a page, and the page of a dry run: what would run, why."""

import json
from collections.abc import Iterable
from typing import Any

from fleetune.errors import FleetuneError
from fleetune.formatting import number, shortlist, size
from fleetune.store import RunRecord, Store
from flows import configs
from flows.past_runs import RunDifference, SettingDifference, diff_runs, setting_differences
from flows.run_pages.page import Page, StoreLinks, page, plain, table
from flows.run_pages.run_content import round_seconds
from flows.tracking import reason

MOST_SETTINGS, LONGEST_VALUE = 40, 60


def section(store: Store, base: RunRecord, run: RunRecord, links: StoreLinks) -> Iterable[str]:
    """The part of a run's page on its differences from `base`: settings, stages and results."""
    yield f"## Changed since {links.run(base.id)}"
    yield settings_table(setting_differences(base, run)) or "No setting has changed."
    try:
        found = diff_runs(store, base, run)
    except (FleetuneError, OSError) as error:
        yield f"Its results cannot be compared: {plain(str(error))}"
        return
    yield _stages(base, run, found)
    both = [score for score in found.scores if score.first is not None and score.second is not None]
    rows = [_measured(score.name, score.first or 0.0, score.second or 0.0) for score in both]
    yield table(("measured", "before", "now"), rows)


def settings_table(found: Iterable[SettingDifference]) -> str:
    """A table of settings that differ; empty when none does."""
    rows = [(plain(one.key), plain(value_text(one.first)), plain(value_text(one.second))) for one in found]
    more = [(f"and {len(rows) - MOST_SETTINGS} more", "", "")] if len(rows) > MOST_SETTINGS else []
    return table(("setting", "before", "now"), rows[:MOST_SETTINGS] + more)


def settings_text(found: Iterable[SettingDifference], most: int = 3) -> str:
    """The same in a line: `training.rounds 40 → 60, strategy.name "pp" → "asteroid"`."""
    return shortlist((f"{one.key} {value_text(one.first)} → {value_text(one.second)}" for one in found), most)


def value_text(value: Any) -> str:
    """A setting's value, shortened; `-` when there is none."""
    text = "-" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…"


def _stages(base: RunRecord, run: RunRecord, found: RunDifference) -> str:
    """Stages that made the same as before, and those that did not, with the reason."""
    ended = [{stage.stage for stage in one.stages if stage.outputs} for one in (base, run)]
    same = [plain(one.stage) for one in found.stages if one.same]
    other = [one for one in found.stages if not one.same and one.stage in ended[1]]
    lines = [f"- the same results: {', '.join(same)}"] if same else []
    lines += [f"- other results of **{plain(one.stage)}**: {plain(one.why)}" for one in other if one.stage in ended[0]]
    first = [plain(one.stage) for one in other if one.stage not in ended[0]]
    lines += [f"- not finished by that run: {', '.join(first)}"] if first else []
    return "\n".join(lines)


def _measured(name: str, before: float, now: float) -> tuple[str, ...]:
    """The row of a number of both runs."""
    if name == "round_s":
        return ("a round", round_seconds(before), round_seconds(now))
    if name == "bytes_per_round":
        return ("sent in a round", size(before), size(now))
    return (plain(name.removesuffix(" after")), number(before), number(now))


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
