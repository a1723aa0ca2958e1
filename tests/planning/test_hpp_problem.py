"""Fleet and profile as a problem of kind "hpp", and its solution as a plan."""

import math
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from fleetune.checks import findings
from fleetune.clock import Clock
from fleetune.contracts.fleet import Fleet
from fleetune.errors import Infeasible
from fleetune.models.recorder import record_model
from fleetune.models.units import fold_into_units, merge_uncuttable
from fleetune.planning import Problem
from fleetune.planning.hpp_problem import PosedProblem, to_hpp_problem, to_plan, with_reserves
from fleetune.profiling.profile import unit_sizes
from fleetune.solving.hpp.draft import Draft, DraftStage, evaluate
from fleetune.solving.hpp.instance import Instance
from fleetune.solving.hpp.problem import Share, Solution
from fleetune.solving.hpp.problem import Stage as SolutionStage
from tests.support.clock import fleets
from tests.support.planning.instances import jagged, names_of, small, tiny

PROPERTY = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def random_draft(posed: PosedProblem, chance: random.Random) -> Draft:
    """Random cuts, groups and shares on some of the devices, whether they fit or not."""
    numbers = posed.problem
    parts = chance.randint(1, min(len(numbers.layers), len(numbers.devices)))
    cuts = [0, *sorted(chance.sample(range(1, len(numbers.layers)), parts - 1)), len(numbers.layers)]
    devices = chance.sample(range(len(numbers.devices)), len(numbers.devices))
    groups = [[devices.pop()] for _ in range(parts)]
    while devices and chance.random() < 0.7:
        group = chance.choice(groups)
        if len(group) < numbers.micro_batch:
            group.append(devices.pop())
    stages = []
    for p, group in enumerate(groups):
        inner = sorted(chance.sample(range(1, numbers.micro_batch), len(group) - 1))
        edges = [0, *inner, numbers.micro_batch]
        shares = tuple(b - a for a, b in zip(edges, edges[1:], strict=False))
        stages.append(DraftStage(cuts[p], cuts[p + 1], tuple(group), shares))
    warmups = sorted((chance.randint(1, 6) for _ in range(parts)), reverse=True)
    return Draft(tuple(stages), tuple(warmups))


def solution_of(posed: PosedProblem, draft: Draft) -> Solution:
    """The draft as a solution of the solver."""
    verdict = evaluate(Instance(posed.problem, *posed.extras), draft)
    named = posed.problem.devices
    stages = tuple(
        SolutionStage(
            layers=(stage.first, stage.end),
            devices=tuple(
                Share(name=named[d].name, samples=y) for d, y in zip(stage.devices, stage.samples, strict=True)
            ),
            warmup=k,
        )
        for stage, k in zip(draft.stages, draft.warmups, strict=True)
    )
    memory = {
        named[d].name: peak
        for stage, peaks in zip(draft.stages, verdict.memory_bytes, strict=True)
        for d, peak in zip(stage.devices, peaks, strict=True)
    }
    return Solution(
        method="by hand",
        feasible=True,
        objective=verdict.round_s,
        lower_bound=None,
        solve_s=0.0,
        deterministic=True,
        stages=stages,
        formula_round_s=verdict.formula_round_s,
        memory_bytes=memory,
    )


@PROPERTY
@given(problem=tiny(devices=4), layers=st.sampled_from(["units", "blocks", 1, 2, 3]), seed=st.integers(0, 10**6))
def test_a_plan_takes_as_long_as_its_solution(problem: Problem, layers: str | int, seed: int) -> None:
    """Round and memory of random drafts agree to the nanosecond and byte, with odd fractions of nanoseconds, links that
    cost processor time and joined units."""
    chance = random.Random(seed)
    problem = jagged(problem, chance)
    try:
        posed = to_hpp_problem(problem, names_of(problem), layers=layers)
    except Infeasible:
        return
    solution = solution_of(posed, random_draft(posed, chance))
    plan = to_plan("by hand", problem, posed, solution)
    clock = Clock(problem.fleet, problem.profile)
    assert clock.round_s(plan) == solution.objective
    for amount in clock.forecast(plan).memory_bytes:
        runtime = problem.profile.times_of(amount.device).runtime_bytes
        assert amount.amount == solution.memory_bytes[amount.device] + runtime
    over = any(
        solution.memory_bytes[d.name] > d.memory_bytes for d in posed.problem.devices if d.name in solution.memory_bytes
    )
    assert bool(findings(plan, problem.fleet, problem.profile)) == over


def test_budgets_are_memory_less_the_idle_runtime() -> None:
    """The runtime takes 50 bytes; a device that has fewer is left out; where none has more the neediest is named."""
    fleet = fleets.fleet(fleets.device("a", 1000), fleets.device("b", 50), fleets.device("c", 49))
    problem = replace(small(), fleet=fleet)
    assert [(d.name, d.memory_bytes) for d in to_hpp_problem(problem, "abc").problem.devices] == [("a", 950), ("b", 0)]
    with pytest.raises(Infeasible, match="device c lacks 1 byte for an idle worker"):
        to_hpp_problem(problem, "c")


def test_frozen_weights_and_buffers_are_kept_but_not_trained() -> None:
    """Of 1000 bytes of weights 100 are trained, 30 bytes of buffers come beside them."""
    units = [replace(unit, trainable_bytes=100, buffer_bytes=30) for unit in fleets.UNITS]
    problem = replace(small(), profile=replace(fleets.PROFILE, units=tuple(units)))
    layer = to_hpp_problem(problem, "abc").problem.layers[0]
    assert (layer.param_bytes, layer.trainable_bytes) == (1030, 100)


def test_units_that_may_not_be_cut_apart_are_one_layer() -> None:
    """u1 and u2 stay together: sums, and what crosses after the last; times are sums as well."""
    units = [fleets.unit(f"u{k}", cut_after=k != 1) for k in range(4)]
    units[1], units[2] = replace(units[1], output_bytes=7), replace(units[2], output_bytes=300, gradient_bytes=20)
    problem = replace(small(), profile=fleets.profile(units, fleets.PACES))
    posed = to_hpp_problem(problem, "abc")
    assert [layer.name for layer in posed.problem.layers] == ["u0", "u1 .. u2", "u3"]
    joined = posed.problem.layers[1]
    assert (joined.param_bytes, joined.activation_bytes, joined.flops) == (2000, 200, 2000)
    assert (joined.output_bytes, joined.gradient_bytes) == (300, 20)
    forward, backward = (table[0][1] for table in (posed.problem.forward_s, posed.problem.backward_s))
    assert forward == pytest.approx([2 * 0.001 * (y + 0.1) for y in (1, 2, 3, 4)], abs=1e-12)
    assert backward == pytest.approx([4 * 0.001 * (y + 0.1) for y in (1, 2, 3, 4)], abs=1e-12)


def test_links_and_lost_seconds_stand_in_the_order_of_devices() -> None:
    """Only named devices, each way of its own; the diagonal is empty."""
    links = tuple(
        replace(link, bytes_per_s=1e6 + ord(link.source), latency_s=1e-3 * (link.target == "a"))
        for link in fleets.FLEET.links
    )
    devices = tuple(replace(d, link_cpu_s_per_byte=1e-9 * (d.name == "c")) for d in fleets.FLEET.devices)
    posed = to_hpp_problem(replace(small(), fleet=Fleet(devices=devices, links=links)), "ca")
    assert posed.problem.bandwidth_bytes_per_s == ((None, 1e6 + 99), (1e6 + 97, None))
    assert posed.problem.latency_s == ((None, 1e-3), (0.0, None))
    assert posed.extras.lost_s_per_byte == (1e-9, 0.0)


def test_reserves_are_held_back_where_they_are_asked_for() -> None:
    """Reserves lower a budget to 0 at most."""
    posed = to_hpp_problem(
        replace(small(), fleet=fleets.fleet(fleets.device("a", 1050), fleets.device("b", 2050))), "ab"
    )
    for held, left in (({}, [1000, 2000]), ({"b": 500}, [1000, 1500]), ({"a": 1001, "b": 1}, [0, 1999])):
        assert [device.memory_bytes for device in with_reserves(posed, held).problem.devices] == left


class Skipping(nn.Module):
    """`first` feeds `second` and, over its head, `last`."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, 8), nn.Linear(8, 6), nn.Linear(6, 8)
        self.last = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x is [samples, 4]."""
        skip = self.first(x)
        return self.last(self.third(self.second(skip)) + skip)


def test_a_skip_connection_crosses_every_cut_below_it() -> None:
    """After `second` its 6 numbers and the 8 of `first` cross; after `third` its 8 and those 8; 4 bytes each."""
    module = Skipping()
    recording = record_model(module, {"x": torch.zeros(4, 4)}, {"first", "second", "third", "last"})
    graph = merge_uncuttable(fold_into_units(recording))
    units = unit_sizes(graph, module, [100] * 4, [100] * 4, 4)
    problem = replace(small(), profile=fleets.profile(list(units), fleets.PACES))
    layers = to_hpp_problem(problem, "abc").problem.layers
    assert [(layer.name, layer.output_bytes // 4, (layer.gradient_bytes or 0) // 4) for layer in layers] == [
        ("first", 8, 8),
        ("second", 6 + 8, 6 + 8),
        ("third", 8 + 8, 8 + 8),
        ("last", 0, 0),
    ]
    joined = to_hpp_problem(problem, "abc", layers=2).problem.layers
    assert [layer.output_bytes for layer in joined] == [56, 0], "joined, the same still crosses"
    assert math.fsum(layer.param_bytes for layer in joined) == sum(p.nbytes for p in module.parameters())
