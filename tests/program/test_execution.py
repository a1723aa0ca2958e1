"""Programs carried out without times: random plans of all strategies end, planted deadlocks are found."""

from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import HealthCheck, given, settings

from fleetune.checks import findings
from fleetune.clock.costs import kept_micro_batches, segments_on
from fleetune.contracts.plan import Plan
from fleetune.contracts.profile import Profile
from fleetune.errors import FleetuneError
from fleetune.planning import Problem, solve
from fleetune.program import DeviceProgram, Program, lower, parse_program, parse_step, program_of
from fleetune.program.execution import carry_out
from tests.support.clock import ticks
from tests.support.clock.ticks import segment
from tests.support.planning.instances import tiny


def program(**lines: str) -> Program:
    """A program from each device's steps, one per line."""
    return Program(
        tuple(
            DeviceProgram(device, tuple(parse_step(line.strip()) for line in text.strip().split(";")))
            for device, text in lines.items()
        )
    )


def stuck(made: Program) -> list[str]:
    """Steps that wait for ever."""
    return [str(each) for each in carry_out(made).waiting]


def assert_ends(plan: Plan) -> None:
    """Assert that a plan's program ends, all messages are received, and its peaks are those the clock counts."""
    made = lower(plan)
    assert parse_program(str(made)) == made, "programs are text that parses back, with averages and lanes too"
    assert carry_out(made) == ((), (), {})
    for own in made:
        for placed in segments_on(plan, own.device):
            runs = (step.action.letter for step in own.round if str(step).startswith(f"run {placed}"))
            kept = accumulate(1 if letter == "F" else -1 for letter in runs)
            assert max(kept) == kept_micro_batches(plan, own.device, placed)


@pytest.mark.parametrize("strategy", ["asteroid", "dp", "pp", "single", "fusionllm", "lola-deft", "split-learning"])
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(problem=tiny())
def test_every_plan_of_every_strategy_ends(strategy: str, problem: Problem) -> None:
    """Nobody waits for ever in a round or an average, and each seat keeps as many micro-batches as memory counts."""
    try:
        plan = solve(strategy, problem, now=lambda: 0.0).plan
    except FleetuneError:  # too few devices, units or bytes for this strategy
        return
    assert_ends(plan)
    if not plan.order:
        assert_ends(replace(plan, lanes=tuple(replace(lane, micro_batches=1) for lane in plan.lanes)))


def test_a_planted_deadlock_is_found() -> None:
    """a wants the gradients of micro-batch 0 before it sends micro-batch 1, and b both forwards before any backward."""
    lanes = {"main": [segment("u0", "a"), segment("u1", "b")]}
    orders = {"a": "main/0F0 main/0B0 main/0F1 main/0B1", "b": "main/1F0 main/1F1 main/1B0 main/1B1"}
    assert stuck(lower(ticks.plan(lanes, micro_batches=2, orders=orders))) == [
        "a at `receive main/1B0 from b 0:1 shared`",
        "b at `receive main/0F1 from a 0:1 shared`",
    ]


def test_groups_that_reduce_in_another_order_wait_for_ever() -> None:
    """Each member has come to another sum; with the same order both pass."""
    first, second = "reduce x/0R0 with a,b", "reduce y/0R0 with a,b"
    assert stuck(program(a=f"{first};{second}", b=f"{second};{first}")) == [f"a at `{first}`", f"b at `{second}`"]
    assert not stuck(program(a=f"{first};{second}", b=f"{first};{second}"))


def test_a_message_that_nobody_sends_or_receives_is_found() -> None:
    """Of other samples, of another step, or without another end."""
    assert stuck(program(a="send x/0F0 to b 0:2", b="receive x/0F0 from a 0:3")) == ["b at `receive x/0F0 from a 0:3`"]
    assert stuck(program(a="push x/0U0 to s", s="run x/0F0;collect x/0A0 from a")) == ["s at `collect x/0A0 from a`"]
    (left,) = carry_out(program(a="send x/0F0 to b 0:2", b="run x/1F0")).unreceived
    assert str(left) == "a at `send x/0F0 to b 0:2`"


def test_findings_tell_a_deadlock_in_an_average(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock sees forwards and backwards only; an average whose hub collects what nobody pushes is told by its
    step."""
    lanes = {name: [segment("u0 u1", name)] for name in "ab"}
    made = replace(ticks.plan(lanes), average_every_rounds=2)
    profile = ticks.profile(
        [ticks.unit("u0", trained=3), ticks.unit("u1", trained=2)], dict.fromkeys("ab", ([1, 1],) * 2)
    )
    fleet = ticks.fleet("a b")
    assert findings(made, fleet, profile) == ()
    one, other = lower(made).devices
    broken = Program((one, replace(other, average=other.average[1:])))
    # replaced: no plan is lowered to steps that wait for ever, since that is what is proven
    monkeypatch.setattr("fleetune.checks.order.program_of", lambda plan, profile: broken)
    (said,) = findings(made, fleet, profile)
    assert said.startswith("its steps never end: a at `collect b/0A0 from b`, b at `pull b/0A0 from a` wait for ever")


def test_findings_prove_the_sums_of_shared_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a segment sends of a weight that another one shares must have a receiver, as everything else."""
    made = ticks.plan({"a": [segment("u0", "a"), segment("u1", "b")]})
    units = [replace(ticks.unit(name, trained=3), tied=("w",)) for name in ("u0", "u1")]
    profile = ticks.profile(units, dict.fromkeys("ab", ([1, 1],) * 2))
    assert findings(made, ticks.fleet("a b"), profile) == ()

    def forgetful(plan: Plan, profile: Profile) -> Program:
        one, other = program_of(plan, profile).devices
        kept = tuple(step for step in other.round if not (step.kind == "receive" and step.action.letter == "R"))
        return Program((one, replace(other, round=kept)))

    # replaced: an error of lowering, as none is known
    monkeypatch.setattr("fleetune.checks.order.program_of", forgetful)
    (said,) = findings(made, ticks.fleet("a b"), profile)
    assert said.startswith("its steps send what nobody receives: a at `send a/0R1 to b`")
