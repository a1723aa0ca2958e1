"""Kind "deft": assign each block to a device and divide the bandwidth so that the slowest pair finishes earliest.

Source: LoLa-DEFT (Wu, H., Chen, X., Huang, K., 2024: low-latency device-edge cooperative fine-tuning). The paper calls
the joint problem NP-hard and ascends its dual. With one block per device it is polynomial: the share of the band that a
pair needs to finish by T is one number, so feasibility of T is one assignment problem, and the least T is found
exactly. Rejected alternative: mixed-integer solvers, which are slower and prove less.
"""

from functools import partial

from fleetune.contracts import json_io
from fleetune.solving.api import Kind
from fleetune.solving.lola_deft.methods import SUMMARIES
from fleetune.solving.lola_deft.problem import Problem, Solution
from fleetune.solving.validation import plural

SHOWN = 12
"""Blocks on one line."""


def _solve(problem: Problem, *, method: str, time_limit_s: float | None, seed: int) -> Solution:
    from fleetune.solving.lola_deft.solve import solve

    return solve(problem, method=method, time_limit_s=time_limit_s, seed=seed)


def default(problem: Problem) -> str:
    """Return the exact method for the problem's bandwidth mode."""
    return "crunch" if problem.bandwidth == "equal" else "bisection"


def describe_plan(plan: Solution) -> str:
    """Summarise a plan: `3 blocks on devices 2 0 5 with 1.5e+06 to 4e+06 Hz`."""
    shown = " ".join(map(str, plan.devices[:SHOWN])) + (" ..." if len(plan.devices) > SHOWN else "")
    least, most = (f"{hz:.4g}" for hz in (min(plan.bandwidth_hz), max(plan.bandwidth_hz)))
    where = f"device{'s' if len(plan.devices) > 1 else ''} {shown}"
    return f"{plural(len(plan.devices), 'block')} on {where} with {least if least == most else f'{least} to {most}'} Hz"


DEFT = Kind(
    name="deft",
    summary="cooperative fine-tuning (LoLa-DEFT): a device for each block of adapters, and a part of the band",
    objective="latency",
    unit="s",
    parse=partial(json_io.load, Problem),
    methods=SUMMARIES,
    solve=_solve,
    describe_plan=describe_plan,
    default=default,
)
