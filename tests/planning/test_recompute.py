"""Plans that recompute activations where memory is short."""

from dataclasses import replace

import pytest
from hypothesis import given, settings

from fleetune import planning
from fleetune.clock import Clock
from fleetune.contracts.plan import Plan, PlanResult
from fleetune.contracts.training_request import ALWAYS, AUTO, NEVER
from fleetune.errors import Infeasible, Refused
from fleetune.planning import Problem
from fleetune.planning.recompute import everywhere, memory_may_bind, recomputing, within_memory
from fleetune.planning.revision import Reviser
from tests.support.clock import fleets
from tests.support.planning import instances

UNITS = [
    fleets.unit("embeddings", activation_bytes=50),
    *(fleets.unit(f"layer.{k}.{part}", activation_bytes=900) for k in range(3) for part in ("attention", "mlp")),
    fleets.unit("head", activation_bytes=50),
]
PROFILE = fleets.profile(UNITS, fleets.PACES)
WEIGHTS = 4 * 1000 * len(UNITS)
"""With gradients and AdamW's state."""


def problem(*memory_bytes: int, recompute: str = AUTO) -> Problem:
    """Devices a, b, .. with so much memory, of which 50 bytes are an idle worker's; 3 micro-batches of 4 samples."""
    devices = [fleets.device(name, size) for name, size in zip("abc", memory_bytes, strict=False)]
    names = {device.name for device in devices}
    times = tuple(each for each in PROFILE.times if each.device in names)
    return Problem(
        fleet=fleets.fleet(*devices),
        profile=replace(PROFILE, times=times),
        micro_batch_samples=4,
        micro_batches=3,
        recompute=recompute,
    )


def flags(plan: Plan) -> list[bool]:
    """Of every segment, whether it recomputes."""
    return [segment.recompute for lane in plan.lanes for segment in lane.segments]


def test_nothing_is_recomputed_where_memory_is_plenty() -> None:
    """With room for everything, auto finds the very plan that never finds."""
    roomy = problem(10**6, 10**6)
    assert not memory_may_bind(roomy)
    found = planning.solve("asteroid", roomy)
    assert found.plan == planning.solve("asteroid", replace(roomy, recompute=NEVER)).plan
    assert flags(found.plan) == [False] * len(flags(found.plan))


def test_a_device_whose_memory_is_short_recomputes() -> None:
    """One device keeps 1 micro-batch of 4 samples: 50 + 50 + 6 · 900 bytes each do not fit, but the inputs of three
    blocks and one block's 1,800 do."""
    kept, again = 4 * (100 + 6 * 900), 4 * (100 + 3 * 200) + 4 * 1800
    tight = problem(50 + WEIGHTS + again)
    assert again < kept
    with pytest.raises(Infeasible):
        planning.solve("single", replace(tight, recompute=NEVER))
    found = planning.solve("single", tight)
    assert flags(found.plan) == [True] and found.recompute == AUTO
    clock = Clock(tight.fleet, tight.profile)
    assert clock.memory_bytes(found.plan, "a") == tight.fleet.device("a").memory_bytes
    assert found.objective == clock.round_s(found.plan)
    assert found.lower_bound is not None and found.lower_bound <= found.objective


def test_one_byte_less_is_infeasible_and_says_that_all_is_recomputed() -> None:
    """The error is that of the plan with the least memory."""
    again = 4 * (100 + 3 * 200) + 4 * 1800
    with pytest.raises(Infeasible, match="activations are already recomputed"):
        planning.solve("single", problem(50 + WEIGHTS + again - 1))


def test_only_segments_without_room_recompute() -> None:
    """Of a small and a large device that split the model, the large one keeps its activations."""
    found = planning.solve("pp", problem(40_000, 10**6))
    by_device = {segment.devices[0]: segment.recompute for segment in found.plan.lanes[0].segments}
    assert by_device.get("b") is False
    with pytest.raises(Infeasible):
        planning.solve("pp", problem(24_000, 24_000, recompute=NEVER))


def test_always_recomputes_everywhere() -> None:
    """Whatever the memory; the round takes the forwards of blocks longer."""
    roomy = problem(10**6)
    found = planning.solve("single", replace(roomy, recompute=ALWAYS))
    kept = planning.solve("single", roomy)
    inside = sum(Clock(roomy.fleet, roomy.profile).unit_times("a", 4)[0][1:-1])
    assert flags(found.plan) == [True]
    assert found.objective == pytest.approx(kept.objective + 3 * inside, abs=1e-8)


def test_cuts_lie_between_blocks_where_they_recompute() -> None:
    """A cut inside a block would keep values that the plan does not count."""
    found = planning.solve("pp", replace(problem(10**6, 10**6), recompute=ALWAYS))
    starts = {segment.units[0] for segment in found.plan.lanes[0].segments}
    assert not any(name.endswith("mlp") for name in starts)


@settings(max_examples=60, deadline=None)
@given(instances.tiny() | instances.tiny(workspaces=True))
def test_a_recomputing_problem_is_the_clock_s(tiny: Problem) -> None:
    """A plan for the recomputing problem takes as long by its clock as, with its segments marked, by the problem's
    own, and no more memory there."""
    units = tuple(replace(unit, name=f"layer.{k // 2}.u{k}") for k, unit in enumerate(tiny.profile.units))
    own = replace(tiny, profile=replace(tiny.profile, units=units), recompute=NEVER)
    posed = recomputing(own)
    try:
        plan = planning.solve("single", posed).plan
    except Infeasible:
        return
    there, here = Clock(posed.fleet, posed.profile), Clock(own.fleet, own.profile)
    marked = everywhere(plan, recompute=True)
    assert here.round_s(marked) == pytest.approx(there.round_s(plan), rel=1e-6, abs=1e-8)
    for device in plan.devices:
        assert here.memory_bytes(marked, device) <= there.memory_bytes(plan, device)


@pytest.mark.parametrize("name", ["asteroid", "single", "dp", "pp", "fusionllm", "lola-deft"])
def test_every_strategy_plans_with_it(name: str) -> None:
    """A plan that always recomputes passes the checks of memory and of order."""
    found = planning.solve(name, replace(problem(10**6, 10**6, 10**6), recompute=ALWAYS))
    assert all(flags(found.plan))


def test_a_plan_after_a_loss_recomputes_if_it_must() -> None:
    """Two devices hold the model between them; the one that is left can only with recomputed activations."""
    again = 4 * (100 + 3 * 200) + 4 * 1800
    size = 50 + WEIGHTS + again
    pair = problem(size, size)
    first = planning.solve("pp", pair)
    following = Problem.of(first, pair.fleet, pair.profile, seed=0)
    found = Reviser(problem=following)(first.plan, ["b"])
    assert flags(found.plan) == [True] and found.plan.devices == ("a",)
    with pytest.raises(Infeasible):
        Reviser(problem=replace(following, recompute=NEVER))(everywhere(first.plan, recompute=False), ["b"])


def test_a_plan_that_needs_cuts_inside_blocks_is_kept() -> None:
    """Bug: cuts that a user has asked for are refused where blocks recompute, and with them the plan that was found."""
    calls = []

    def find(posed: Problem) -> PlanResult:
        calls.append(posed)
        if len(calls) > 1:
            raise Refused("the model cannot be cut after unit layer.0.attention")
        return planning.solve("single", replace(posed, recompute=NEVER))

    tight = problem(50 + WEIGHTS + 4 * (100 + 6 * 900))
    assert memory_may_bind(tight)
    assert flags(within_memory(tight, find).plan) == [False] and len(calls) == 2


def test_an_unknown_setting_is_refused() -> None:
    """The error lists the three that there are."""
    with pytest.raises(Refused, match="auto, always, never"):
        problem(1, recompute="sometimes")
