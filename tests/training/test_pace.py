"""Which devices are slow, by what they report of the rounds of a plan."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fleetune.contracts.metrics import TimelineRow
from fleetune.contracts.plan import LinkUse
from fleetune.contracts.profile import CodecTime
from fleetune.training.pace import ROUNDS, PaceWatch
from fleetune.training.task import TrainingTask
from tests.support.clock import ticks
from tests.support.clock.ticks import TICK_S, segment

UNITS = [ticks.unit("u0", out=16, back=16), ticks.unit("u1")]
PROFILE = ticks.profile(UNITS, {name: ([10, 10], [20, 20]) for name in "ab"})
PLAN = ticks.plan({"main": [segment("u0", "a"), segment("u1", "b")]})


def rows(**busy_ticks: int) -> list[TimelineRow]:
    """What devices report of their passes."""
    return [
        TimelineRow(device=name, lane="main", action="main/0F0", start_s=0.0, end_s=ticks * TICK_S)
        for name, ticks in busy_ticks.items()
    ]


def test_coding_hides_no_straggler() -> None:
    """A device takes 30 ticks for its passes and a forecast 90 for its coding, which it does not report as computing.
    Bug: compared with both, one that took 75 seemed fast."""
    slow_codec = CodecTime(codec="int8", encode_s_per_byte=90 / 16 * TICK_S, decode_s_per_byte=0.0)
    profile = replace(PROFILE, times=tuple(replace(times, codecs=(slow_codec,)) for times in PROFILE.times))
    made = replace(PLAN, links=(LinkUse(source="a", target="b", codec="int8"),))
    task: Any = SimpleNamespace(fleet=ticks.fleet("a b"), profile=profile, measured_busy=lambda round, busy: busy)
    watch = PaceWatch(cast(TrainingTask, task))
    found = [change for round in range(ROUNDS) for change in watch.observe(made, round, rows(a=75, b=30))]
    assert [change.device for change in found] == ["a"] and watch.slow == {"a": pytest.approx(2.5)}


def test_a_lost_straggler_comes_back_as_its_profile_says() -> None:
    """Bug: its next worker was planned for at the pace of the one that was lost, for ever."""
    task: Any = SimpleNamespace(fleet=ticks.fleet("a b"), profile=PROFILE, measured_busy=lambda round, busy: busy)
    watch = PaceWatch(cast(TrainingTask, task))
    for round in range(ROUNDS):
        list(watch.observe(PLAN, round, rows(a=90, b=30)))
    assert watch.slow == {"a": pytest.approx(3.0)}
    watch.forget("a")
    watch.forget("b")
    assert watch.slow == {}
