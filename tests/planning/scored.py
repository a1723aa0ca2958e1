"""Problems whose profile has scores of subnets."""

from dataclasses import replace

from fleetune.contracts.profile import Subnet, SubnetPart
from fleetune.planning import Problem


def scored(problem: Problem, heads: int = 2) -> Problem:
    """Every unit as a block of `heads` equal heads, which together are four fifths of it; scores differ by head and,
    for Fisher, by micro-batch."""
    subnets = tuple(
        Subnet(
            name=f"{unit.name}#{head}",
            parts=(SubnetPart(unit=unit.name, share=0.8 / heads),),
            weight_magnitude=1.0 + head,
            gradient_magnitude=2.0 - head / heads,
            fisher=tuple(float((5 * m + 3 * head + index) % 7) for m in range(problem.micro_batches)),
        )
        for index, unit in enumerate(problem.profile.units)
        for head in range(heads)
    )
    return replace(problem, profile=replace(problem.profile, subnets=subnets))
