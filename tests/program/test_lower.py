"""Programs: drawn by hand for small plans, and proven for random ones."""

import re
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings

from fleetune.contracts.fleet import Fleet
from fleetune.contracts.plan import Plan
from fleetune.contracts.profile import Profile
from fleetune.errors import Refused
from fleetune.program import Program, lower, parse_program, parse_step, steps
from tests.support.clock.plans import chains
from tests.support.clock.ticks import plan, segment


def drawn(text: str) -> list[str]:
    """Split a drawing of steps into lines without their margins."""
    return [line.strip() for line in text.strip().splitlines()]


def test_the_steps_of_a_middle_segment() -> None:
    """c has a's sample and passes it on to e; what all samples share travels once to each receiver."""
    wide = plan({"main": [segment("u0 u1", "a b"), segment("u2", "c d"), segment("u3", "e f")]})
    assert [str(step) for step in lower(wide).of("c").round] == drawn("""
        receive main/0F0 from a 0:1 shared
        run main/1F0
        send main/1F0 to e 0:1 shared
        receive main/2B0 from e 0:1 shared
        run main/1B0
        send main/1B0 to a 0:1 shared
        reduce main/1R0 with c,d
    """)


def test_shared_weights_are_dealt_to_the_other_segments_members() -> None:
    """Both ends hold the sum of their group; each member sends to every other member of the other segment."""
    two = plan({"main": [segment("u0", "a b"), segment("u1", "c d")]})
    program = lower(two, tied={"u0": ("w",), "u1": ("w",)})
    assert [str(step) for step in program.of("b").round if step.action.letter == "R"] == drawn("""
        reduce main/0R0 with a,b
        send main/0R1 to d
        receive main/1R0 from d
        tie main/0R0 with 0,1
    """)


def test_a_collector_hands_out_parameters_and_collects_gradients() -> None:
    """Every device pulls all trainable units it runs, and pushes those it trains; units without any are left out."""
    lanes = {"x": [segment("u0 u1", "a", trains="u1")], "y": [segment("u0 u1", "b", trains="u0")]}
    made = plan(lanes)
    hub = Plan(**{**{f: getattr(made, f) for f in made.__dataclass_fields__}, "collector": "s"})
    program = lower(hub, trainable={"u1"})
    assert str(program) == "\n".join(
        [
            "a:",
            "  pull x/0U0 from s", "  run x/0F0", "  run x/0B0", "  push x/0U0 to s",
            "b:",
            "  pull y/0U0 from s", "  run y/0F0", "  run y/0B0",
            "s:",
            "  hand x/0U0 to a", "  hand y/0U0 to b", "  collect x/0U0 from a",
        ]
    )  # fmt: skip


def test_gradients_leave_for_the_collector_once_they_are_whole() -> None:
    """A device with two lanes sends the first one's while it runs the second."""
    lanes = {c: [segment("u0", "a")] for c in "xy"}
    made = plan(lanes)
    hub = Plan(**{**{f: getattr(made, f) for f in made.__dataclass_fields__}, "collector": "s"})
    assert [str(step) for step in lower(hub).of("a").round] == drawn("""
        pull x/0U0 from s
        pull y/0U0 from s
        run x/0F0
        run x/0B0
        push x/0U0 to s
        run y/0F0
        run y/0B0
        push y/0U0 to s
    """)


def test_shared_weights_that_a_segment_does_not_train_are_not_summed() -> None:
    """Neither end sends anything for a weight that neither trains."""
    two = plan({"main": [segment("u0 u1", "a", trains="u1"), segment("u2 u3", "b", trains="u2")]})
    program = lower(two, tied={"u0": ("w",), "u3": ("w",)})
    assert [str(step) for step in program.of("a").round if step.action.letter == "R"] == []


def test_an_average_goes_through_the_device_with_most_seats() -> None:
    """The helper of two clients collects both lanes' parts, its own included, and hands them back."""
    lanes = {c: [segment("u0", c), segment("u1", "h")] for c in "xy"}
    made = plan(lanes)
    averaged = Plan(**{**{f: getattr(made, f) for f in made.__dataclass_fields__}, "average_every_rounds": 2})
    assert [str(step) for step in lower(averaged).of("y").average] == ["push y/0A0 to h", "pull y/0A0 from h"]
    assert [str(step) for step in lower(averaged).of("h").average] == drawn("""
        push x/1A0 to h
        push y/1A0 to h
        collect x/0A0 from x
        collect x/1A0 from h
        collect y/0A0 from y
        collect y/1A0 from h
        hand x/0A0 to x
        hand x/1A0 to h
        hand y/0A0 to y
        hand y/1A0 to h
        pull x/1A0 from h
        pull y/1A0 from h
    """)
    assert lower(made).of("h").average == ()


def transfers(program: Program, kinds: dict[str, str]) -> Counter[tuple[str, ...]]:
    """Return the transfers of steps of these kinds, named alike at both ends."""
    found: Counter[tuple[str, ...]] = Counter()
    for own in program:
        for step in (*own.round, *own.average):
            if step.kind in kinds:
                ends = (own.device, step.peer) if step.kind in steps.OUTGOING else (step.peer, own.device)
                found[kinds[step.kind], str(step.action), *ends, f"{step.first}:{step.end} {step.shared}"] += 1
    return found


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(chains())
def test_every_receive_has_its_send(drawn_chain: tuple[Plan, Fleet, Profile]) -> None:
    """Both ends of every transfer name the same action, devices and samples, once; steps parse back."""
    made, _, _ = drawn_chain
    units = [unit for s in made.lanes[0].segments for unit in s.units]
    program = lower(made, tied={units[0]: ("w",), units[-1]: ("w",)})
    sent = transfers(program, {steps.SEND: "t", steps.HAND: "h", steps.PUSH: "p"})
    received = transfers(program, {steps.RECEIVE: "t", steps.PULL: "h", steps.COLLECT: "p"})
    assert sent == received and (not sent or max(sent.values()) == 1)
    assert parse_program(str(program)) == program


@pytest.mark.parametrize(
    "line", ["", "run", "run main/0F0 to a", "send main/0F0", "send main/0F0 from a 0:1", "go main/0F0", "run main/0X0"]
)
def test_other_texts_are_no_steps(line: str) -> None:
    """The refusal shows how a step is written."""
    with pytest.raises(Refused, match="write"):
        parse_step(line)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("  run main/0F0", "line 1: '  run main/0F0' stands before any device"),
        ("a:\n  run main/0F0\nb", "line 3: 'b' is no device; write its name and a colon"),
        ("a:\n  average: go x/0A0", "line 2: step 'go x/0A0': write KIND"),
    ],
)
def test_other_texts_are_no_programs(text: str, said: str) -> None:
    """The refusal names the line."""
    with pytest.raises(Refused, match=f"^program, {re.escape(said)}"):
        parse_program(text)
