"""Plans of every strategy for a small fleet, as text a reviewer can read."""

import pytest

from fleetune.drawing import plan_text
from fleetune.planning import solve
from tests.golden import same_as_golden
from tests.planning.instances import small

CASES = {
    "single": ("single", {}),
    "dp": ("dp", {}),
    "pp": ("pp", {}),
    "pp-given-order": ("pp", {"devices": ["c", "b", "a"], "order": "given"}),
    "pp-groups": ("pp", {"groups": [["a"], ["b", "c"]]}),
    "pp-warmup": ("pp", {"devices": ["a", "b"], "warmup": "P-p"}),
}


@pytest.mark.parametrize("case", CASES)
def test_plan_is_the_one_that_was_looked_at(case: str) -> None:
    """Six micro-batches of 8 samples on a, b, c of speeds 4 : 2 : 1."""
    method, options = CASES[case]
    problem = small(micro_batch_samples=8, micro_batches=6, **options)
    same_as_golden(f"plan-{case}.txt", plan_text(solve(method, problem, now=lambda: 0.0)))
