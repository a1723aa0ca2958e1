"""Plans by which data would leave the device that they lie on."""

from dataclasses import replace

import pytest

from fleetune.checks.findings import check_local_data
from fleetune.contracts.plan import Plan
from fleetune.contracts.profile import Profile
from fleetune.errors import Refused
from fleetune.program.lower import averaging_device
from tests.support.checks.plans import CLIENTS, PROFILE, SPLIT, TUNED
from tests.support.clock import ticks
from tests.support.clock.ticks import segment

BARE = replace(PROFILE, units=(replace(PROFILE.units[0], param_bytes=0, trainable_bytes=0), *PROFILE.units[1:]))
"""Its first unit has no parameters: what it sends are samples in other shapes."""


@pytest.mark.parametrize("plan", [SPLIT, TUNED])
def test_lanes_that_begin_and_end_on_owners_are_sound(plan: Plan) -> None:
    """Split learning sends what a learned layer made; LoLa-DEFT sends no values at all, so nothing is asked of it."""
    check_local_data(plan, PROFILE, ("x", "y", "spare"))
    check_local_data(TUNED, BARE, ("x", "y"))


@pytest.mark.parametrize(
    ("plan", "profile", "owners", "words"),
    [
        (SPLIT, PROFILE, ("x", "spare"), r"lane y begins on y, which has no data; .*data lie on x, spare"),
        (SPLIT, BARE, ("x", "y"), r"segment x/0 lies before the first learned layer, so samples would leave x"),
        (
            ticks.plan({"a": [segment("u0", "x"), segment("u1 u2", "h")]}),
            PROFILE,
            ("x", "h"),
            r"lane a begins and ends on x, h, so samples or labels would leave x",
        ),
        (SPLIT, PROFILE, ("x", "y", "h"), r"lane x runs through h, which has data of its own and would receive what x"),
        (
            ticks.plan({"a": CLIENTS["x"], "b": [segment("u0 u1 u2", "x")]}),
            PROFILE,
            ("x",),
            r"lanes a and b both begin on x, so its data would count twice",
        ),
    ],
)
def test_plans_by_which_data_would_leave_are_refused(
    plan: Plan, profile: Profile, owners: tuple[str, ...], words: str
) -> None:
    """The refusal says what would leave which device."""
    with pytest.raises(Refused, match=words):
        check_local_data(plan, profile, owners)


def test_no_owner_gathers_what_the_others_train() -> None:
    """Weights, and gradients of embeddings, show what is in data: an owner may neither average nor collect for others.

    With deep cuts most units are a client's, so that the plan names its helper; where every client runs the whole model
    nobody without data is left.
    """
    parts = ("u0", "u1", "u2")
    deep = ticks.plan({name: [segment(u, d) for u, d in zip(parts, (name, "h", name), strict=True)] for name in "xy"})
    averaged = replace(deep, average_every_rounds=3)
    assert averaging_device(averaged) == "x"
    with pytest.raises(Refused, match="data.local: x has data of its own"):
        check_local_data(averaged, PROFILE, ("x", "y"))
    helped = replace(averaged, averager="h")
    assert averaging_device(helped) == "h" and averaging_device(replace(helped, averager="gone")) == "x"
    check_local_data(helped, PROFILE, ("x", "y"))
    alone = replace(ticks.plan({name: [segment("u0 u1 u2", name)] for name in "xy"}), average_every_rounds=3)
    with pytest.raises(Refused, match="data.local: x has data of its own and would receive what all others train"):
        check_local_data(alone, PROFILE, ("x", "y"))
    one = replace(ticks.plan({"x": [segment("u0 u1 u2", "x")]}), average_every_rounds=3)
    check_local_data(one, PROFILE, ("x", "y"))
    with pytest.raises(Refused, match="data.local: s has data of its own"):
        check_local_data(TUNED, PROFILE, ("x", "y", TUNED.collector or ""))
