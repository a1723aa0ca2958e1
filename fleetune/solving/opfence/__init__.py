"""Kind "opfence": placement of a network's operator graph on clusters of devices with uneven links.

Source: FusionLLM (Tang et al., 2024): the objective is eq. (3), OP-Fence (section 4) is one of the methods, AdaTopK
(section 5, eq. (7)) compresses the links. Rejected alternative: one integer program for all of it; hundreds of
operators on 48 devices are beyond what a solver closes in seconds.
"""

from functools import partial

from fleetune.contracts import json_io
from fleetune.solving.api import Kind
from fleetune.solving.opfence.methods import SUMMARIES
from fleetune.solving.opfence.problem import Problem, Solution
from fleetune.solving.validation import plural


def _solve(problem: Problem, *, method: str, time_limit_s: float | None, seed: int) -> Solution:
    from fleetune.solving.opfence.solve import solve

    return solve(problem, method=method, time_limit_s=time_limit_s, seed=seed)


def describe_plan(plan: Solution) -> str:
    """Summarise a plan: `9 operators on 3 devices, 2 links, 1 of them compressed`."""
    used = len(set(plan.placement.values()))
    count = sum(link["ratio"] > 1 for link in plan.links)
    compressed = f", {count} of them compressed" if count else ""
    places = f"{plural(len(plan.placement), 'operator')} on {plural(used, 'device')}"
    return f"{places}, {plural(len(plan.links), 'link')}{compressed}"


OPFENCE = Kind(
    name="opfence",
    summary="operator graphs on clustered links (FusionLLM): which device runs each operator, what each link sends",
    objective="forward",
    unit="s",
    parse=partial(json_io.load, Problem),
    methods=SUMMARIES,
    solve=_solve,
    describe_plan=describe_plan,
)
