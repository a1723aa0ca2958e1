"""Comparisons of strategies on the demo."""

from typing import Any

from fleetune.store import Store
from flows.comparison.comparer import Comparer, CompareRequest
from flows.comparison.record import Comparison
from flows.context import RunContext


def compared(store: Store, *strategies: str, **values: Any) -> Comparison:
    """The comparison of these strategies on the demo's run file."""
    request = CompareRequest(**{"base": "demo", "strategies": strategies, **values})
    return Comparer(RunContext(store=store), request).compare()
