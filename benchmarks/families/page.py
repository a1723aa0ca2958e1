"""The page of the documentation that has the outcome of every family."""

import importlib.metadata
import re
from collections import Counter
from collections.abc import Iterable

from benchmarks.families.trial import BITWISE, BOUND, DIFFERS, Outcome
from benchmarks.families.trials import TASKS, Result

HEAD = """\
# Families

Every type of model that transformers {version} has for the four tasks, tried with a small random configuration: it is
recorded, cut between all of its units, and trained for two steps (SGD, dropout as configured) beside a loop of plain
PyTorch on the whole model, in one process. This page is written by `python -m benchmarks.families --write`.

- **bitwise**: losses and all weights agree in every bit.
- **within**: rounding only. The first number is the distance of all weights' change from the plain loop's, relative to
  that change; the second is what another order of the samples causes in the plain loop itself. No tensor's distance is
  more than 50 times its own floor. Dropout is off in this comparison.
- **refused**: the run ends before training, with this sentence.
- **untried**: no small configuration of it could be made here; your own may train, and is compared before it does.

*Layers*: its blocks cannot be units, so its layers are. A run compares your own model in the same way before it
trains, whatever this page says.
"""


def page_of(found: Iterable[Result]) -> str:
    """Return the page as Markdown."""
    listed = list(found)
    text = [HEAD.format(version=importlib.metadata.version("transformers"))]
    for task in TASKS:
        rows = sorted((r for r in listed if r.task == task), key=lambda r: r.outcome.status != DIFFERS)
        if not rows:
            continue
        counts = Counter(row.outcome.status for row in rows)
        said = ", ".join(f"{number} {status}" for status, number in sorted(counts.items()))
        text += [f"## {task}", "", f"{len(rows)} types: {said}.", "", *_together(rows), "", *_table(rows), ""]
    return "\n".join(text)


def _together(rows: list[Result]) -> list[str]:
    """Return the types that train bitwise, in one paragraph."""
    names = [f"`{r.model_type}`{' (layers)' if r.outcome.layers else ''}" for r in rows if r.outcome.status == BITWISE]
    return ["Bitwise: " + ", ".join(names) + "."] if names else []


def _table(rows: list[Result]) -> list[str]:
    others = [row for row in rows if row.outcome.status != BITWISE]
    if not others:
        return []
    body = [f"| `{row.model_type}` | {_outcome(row.outcome)} | {_sentence(row.outcome.why)} |" for row in others]
    return ["| type | outcome | why |", "|---|---|---|", *body]


def _outcome(outcome: Outcome) -> str:
    layers = " (layers)" if outcome.layers else ""
    if outcome.status == BOUND:
        return f"within {outcome.distance:.0e}, floor {outcome.floor:.0e}{layers}"
    return f"{outcome.status}{layers}"


def _sentence(why: str) -> str:
    """Return a reason as a cell: without the prefix of errors, and without what would end the cell."""
    plain = re.sub(r"^model: ", "", why).replace("|", "/").replace("`", "'")
    return re.sub(r"s\d+", "samples", plain)
