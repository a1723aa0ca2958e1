"""The difference of a run from an earlier one, as part of a page."""

import json
from collections.abc import Iterable
from typing import Any

from fleetune.errors import FleetuneError
from fleetune.formatting import number, size
from fleetune.store import RunRecord, Store
from flows.inspection.links import StoreLinks
from flows.inspection.page import plain, table
from flows.inspection.run_content import round_seconds
from flows.past_runs import RunDifference, SettingDifference, diff_runs, setting_differences

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
    said = [f"{one.key} {value_text(one.first)} → {value_text(one.second)}" for one in found]
    return ", ".join(said[:most]) + (f" and {len(said) - most} more" if len(said) > most else "")


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
