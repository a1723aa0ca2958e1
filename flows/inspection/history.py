"""The history of a config: a row for each of its runs, newest first."""

from collections.abc import Mapping

from fleetune.store import RunRecord, Store
from flows.inspection import difference
from flows.inspection.links import StoreLinks
from flows.inspection.overview import moment, state_text
from flows.inspection.page import Page, page, plain, table, unbroken
from flows.inspection.run_content import RunContent, decisions, gain, result_of, round_seconds
from flows.past_runs import setting_differences

MOST_RUNS = 50


def history(store: Store, run: RunRecord, links: StoreLinks) -> Page:
    """Return the page of all runs of the config of `run`; that one is shown as it is given, not as it is stored."""
    others = [other for other in store.runs.named(run.config.name) if other.id != run.id]
    runs = sorted([run, *others], key=lambda one: (one.started, one.id), reverse=True)
    pairs = list(zip(runs, [*runs[1:], None], strict=True))[:MOST_RUNS]
    promoted = {name: decided.promoted for name, decided in decisions(store, run.config.name).items()}
    rows = [(*_row(store, one, before, links), _state(one, promoted)) for one, before in pairs]
    ended = {state: sum(one.state == state for one in runs) for state in ("done", "failed", "interrupted", "running")}
    counted = ", ".join(f"{count} {state}" for state, count in ended.items() if count)
    headings = ("run", "when", "strategy", "changed", "score", "a round", "state")
    parts = [
        f"# Runs of {plain(run.config.name)}",
        table(headings, rows),
        f"{len(runs) - MOST_RUNS} earlier runs are not listed; fleetune runs lists them." if runs[MOST_RUNS:] else "",
    ]
    return page(parts, f"{len(runs)} runs: {counted}")


def _row(store: Store, run: RunRecord, before: RunRecord | None, links: StoreLinks) -> tuple[str, ...]:
    content = result_of(store, run)
    changed = difference.settings_text(setting_differences(before, run)) or "nothing" if before else "(the first run)"
    return (
        links.run(run.id),
        moment(run.started),
        plain(run.config.strategy.name),
        plain(changed),
        _score(content),
        _round(content),
    )


def _state(run: RunRecord, promoted: Mapping[str, bool]) -> str:
    """The state of a run, and what was decided about its model."""
    decided = {name: ", promoted" if yes else ", not better" for name, yes in promoted.items()}
    return plain(state_text(run) + decided.get(run.id, ""))


def _score(content: RunContent) -> str:
    if content.score is None:
        return ""
    return plain(f"{content.score.name} {content.score.after:.3f} ({gain(content.score)})")


def _round(content: RunContent) -> str:
    if content.training is not None and content.training.rounds:
        return unbroken(round_seconds(content.training.median_round_s))
    return f"{unbroken(round_seconds(content.plan.objective))} forecast" if content.plan is not None else ""
