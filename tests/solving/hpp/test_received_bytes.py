"""What devices of a group need to sum gradients: by hand, and in all plans of tiny problems."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from fleetune.errors import Infeasible
from fleetune.solving.hpp.draft import Draft, DraftStage, evaluate
from fleetune.solving.hpp.instance import Extras, Instance
from fleetune.solving.hpp.methods import SUMMARIES
from fleetune.solving.hpp.problem import Problem, Solution
from fleetune.solving.hpp.solve import solve
from tests.support.solving.hpp import brute_force, reference
from tests.support.solving.hpp.instances import drawn, tiny

SYNCHRONOUS = [method for method in SUMMARIES if method != "hetpipe"]
RECEIVING = Extras(received_per_byte=1)


def peaks(problem: Problem, plan: Solution) -> dict[str, float]:
    """Peak bytes of every device that takes part, with what it receives."""
    received = {
        share.name: reference.trainable(problem, stage.layers) if len(stage.devices) > 1 else 0
        for stage in plan.stages
        for share in stage.devices
    }
    return {name: size + received[name] for name, size in reference.peaks(problem, plan).items()}


def fits(problem: Problem, plan: Solution) -> bool:
    """Whether every device is within its budget."""
    need = peaks(problem, plan)
    return all(need.get(device.name, 0) <= device.memory_bytes for device in problem.devices)


def instances() -> Iterator[Problem]:
    """18 problems whose budgets bind, on links that are fast enough for groups; of a few, layers train a part only."""
    for seed in range(18):
        problem = tiny(
            seed,
            layers=4,
            samples=3 + seed % 2,
            link=(3.0, 30.0)[seed % 2],
            memory=(0.55, 0.65, 0.8)[seed % 3],
            warmup="free" if seed % 9 == 8 else "2(P-p)-1",
            micro_batches=2,
        )
        layers = tuple(replace(x, param_bytes=2 * x.param_bytes, trainable_bytes=None) for x in problem.layers)
        yield problem if seed % 6 == 3 else replace(problem, layers=layers)


def test_two_devices_of_three_pay_for_what_they_receive() -> None:
    """Layers of 1000 trained bytes: devices 0 and 1 share two of them and need 2000 bytes more, device 2 nothing."""
    draft = Draft((DraftStage(0, 2, (0, 1), (1, 1)), DraftStage(2, 3, (2,), (2,))), (3, 1))
    without, with_them = (evaluate(Instance(drawn(), received_per_byte=k), draft).memory_bytes for k in (0, 1))
    assert without == ((9200, 9200), (4400,))
    assert with_them == ((11_200, 11_200), (4400,))


def test_a_group_of_many_and_one_of_frozen_layers_by_hand() -> None:
    """Each of three devices needs as much as each of two; who trains 10 bytes a layer needs 10, who trains none 0."""
    whole = Draft((DraftStage(0, 3, (0, 1, 2), (1, 1, 1)),), (1,))

    def more(trainable_bytes: int) -> set[int]:
        layers = tuple(replace(x, trainable_bytes=trainable_bytes) for x in drawn().layers)
        problem = drawn(layers=layers, micro_batch=3)
        peaks = [evaluate(Instance(problem, received_per_byte=k), whole).memory_bytes[0] for k in (0, 1)]
        return {after - before for before, after in zip(*peaks, strict=True)}

    assert (more(1000), more(10), more(0)) == ({3000}, {30}, {0})


def test_a_byte_less_than_the_group_receives_is_too_little() -> None:
    """Two devices that must share the only layer fit to the byte; with one byte less, what they receive does not."""
    problem = tiny(1, layers=1, devices=2, samples=2, warmup=(1,), micro_batches=1)
    need = int(reference.peak_bytes(problem, (0, 1), 1, 1)) + reference.trainable(problem, (0, 1))
    assert reference.trainable(problem, (0, 1)) > 0

    def given(*sizes: int) -> Problem:
        devices = tuple(replace(d, memory_bytes=y) for d, y in zip(problem.devices, sizes, strict=True))
        return replace(problem, devices=devices)

    plan = solve(given(need, need), every_device=True, extras=RECEIVING)
    assert set(plan.memory_bytes.values()) == {need}
    with pytest.raises(Infeasible, match=f"lacks 1 bytes .*{need} of {need - 1}"):
        solve(given(need, need - 1), every_device=True, extras=RECEIVING)


def test_as_good_as_any_plan_that_has_room_for_what_it_receives() -> None:
    """With the messages of groups counted, `search` finds the best of all plans that fit, within 3 % and on average
    0.5 %, and a plan wherever there is one; and these messages do exclude better plans."""
    gaps, excluded = [], 0
    for problem in instances():
        best = brute_force.best_ns(problem, received_per_byte=1)
        try:
            plan = solve(problem, extras=RECEIVING)
        except Infeasible:
            assert best is None
            continue
        reference.assert_plan(problem, plan.stages)
        assert fits(problem, plan) and plan.memory_bytes == pytest.approx(peaks(problem, plan), abs=1)
        assert best is not None and plan.lower_bound is not None and plan.lower_bound <= best / 1e9 + 5e-10
        gaps.append(plan.objective * 1e9 / best - 1)
        excluded += not fits(problem, solve(problem))
    assert max(gaps) <= 0.03 and sum(gaps) / len(gaps) <= 0.005
    assert excluded >= 4, excluded


@pytest.mark.parametrize("method", SYNCHRONOUS)
def test_every_method_says_what_groups_receive(method: str) -> None:
    """Whatever the method, peaks contain the messages of groups, and a plan is feasible where it fits with them."""
    for problem in instances():
        try:
            plan = solve(problem, method=method, extras=RECEIVING)
        except Infeasible:
            continue
        assert plan.memory_bytes == pytest.approx(peaks(problem, plan), abs=1)
        assert plan.feasible == fits(problem, plan)
