"""pp: pipeline parallelism; the model is cut into contiguous segments whose measured times are balanced.

After Huang et al., GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism, NeurIPS 2019
(arXiv:1811.06965): cuts minimise the time of the slowest segment. Deviations: times are measured on each device instead
of one number per layer, since devices are uneven; memory limits hold; each order of devices (all orders of up to six
devices, a few sorted ones of more) is cut twice, with and without transfer times, and the clock selects the best
candidate; the schedule is one-forward-one-backward (PipeDream, SOSP 2019) with Asteroid's warm-ups. A segment may be on
a group of devices that share its samples, as in Asteroid's hybrid pipelines; groups are given, not searched.
"""

from typing import ClassVar

from fleetune.contracts import json_io
from fleetune.contracts.plan import PlanResult
from fleetune.contracts.record import distinct, one_of, record
from fleetune.errors import Refused
from fleetune.planning import papers
from fleetune.planning.chain_planner import ChainPlanner
from fleetune.planning.plan_result import plan_result
from fleetune.planning.strategy import Problem, participants, require_samples, unprofiled_reason


@record
class Options:
    """Options of `pp`."""

    devices: tuple[str, ...] = ()
    """Names of the devices to use, one segment each; empty: the whole fleet."""
    groups: tuple[tuple[str, ...], ...] = ()
    """Alternative to devices: one segment per group, whose devices share its samples: `[[a], [b, c]]`."""
    order: str = "auto"
    """`given` keeps the order of devices or groups, `best` searches it, `auto` is `given` for groups, else `best`."""
    warmup: str | tuple[int, ...] = "2(P-p)-1"
    """A warm-up policy of kind "hpp", or K of every segment, first to last."""

    def __post_init__(self) -> None:
        one_of("pp", "order", self.order, ("auto", "given", "best"))
        if self.devices and self.groups:
            raise Refused("pp: devices and groups are both given; give only one of them")
        distinct("pp", "device", (name for group in self.groups for name in group))
        if not all(self.groups):
            raise Refused("pp: groups has an empty group; every segment needs a device")


class PipelineParallel:
    """Balances contiguous segments by measured time."""

    name = "pp"
    options: ClassVar[type] = Options
    methods: ClassVar[dict[str, str]] = {}
    summary = "contiguous segments balanced by measured time, one device (or option groups) each"
    citation = f"{papers.GPIPE}\n\n{papers.PIPEDREAM}"

    def unsupported_reason(self, problem: Problem) -> str:
        """Names a device without measured times."""
        return unprofiled_reason(problem)

    def plan(self, problem: Problem) -> PlanResult:
        """The candidate with the shortest round; at equal rounds the first in the order of candidates."""
        options = json_io.load(Options, problem.options, "strategy pp")
        named = [name for group in options.groups for name in group] or options.devices
        names = participants(problem, named)
        groups = options.groups or tuple((name,) for name in names)
        for group in groups:
            require_samples(problem, group)
        search = ChainPlanner(self.name, problem, groups, options.warmup)
        keep_order = options.order == "given" or (options.order == "auto" and bool(options.groups))
        best = search.best(keep_order)
        return plan_result(best, problem, search.costs.clock, self.citation)
