"""Comparisons of strategies on the demo."""

from typing import Any

from flows.api import RunWith
from flows.comparison.comparer import Comparer, CompareRequest
from flows.comparison.record import Comparison
from flows.context import RunContext
from tests.support.flows.comparison.stand_in import StandIn


def compared(pipeline: StandIn, *strategies: str, run_with: RunWith | None = None, **values: Any) -> Comparison:
    """The comparison of these strategies on the demo's run file; `run_with` runs them in place of the pipeline's."""
    request = CompareRequest(**{"base": "demo", "strategies": strategies, **values})
    return Comparer(RunContext(store=pipeline.store), request, run_with or pipeline.run_with).compare()
