"""Codecs of links by the forecast, within a bound of lost information."""

import math
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleetune.clock import Clock
from fleetune.codecs import decode, encode
from fleetune.contracts.fleet import Fleet, Link
from fleetune.contracts.plan import LinkUse, Plan
from fleetune.contracts.profile import CodecTime, Profile
from fleetune.contracts.run_config import StrategyRequest
from fleetune.errors import Refused
from fleetune.planning import compression, papers, solve
from fleetune.planning.api import citations
from fleetune.planning.backups import rounds_between
from fleetune.planning.compression import LOSSES, NONE, RATIOS, Choice, choices, top_k_loss, with_codecs, with_top_k
from tests.support.clock import fleets
from tests.support.planning.instances import small

pytestmark = pytest.mark.usefixtures("short_walks")

CHAIN = fleets.plan(("u0", {"a": 4}, 3), ("u1", {"b": 4}, 2), ("u2 u3", {"c": 4}, 1))
GROUP = fleets.plan(("u0 u1", {"a": 4}, 3), ("u2 u3", {"b": 3, "c": 1}, 1))
TWO = (Choice("int8", 1.0, 0.013), Choice("int4-hadamard", 1.0, 0.12))


def fleet(rates: dict[str, float], default: float = 1e6) -> Fleet:
    """Links without latency; of `default` bytes per second where none are given as `ab`."""
    names = [device.name for device in fleets.FLEET.devices]
    links = tuple(
        Link(source=a, target=b, latency_s=0.0, bytes_per_s=rates.get(a + b, default))
        for a in names
        for b in names
        if a != b
    )
    return replace(fleets.FLEET, links=links)


def profile(encode_s: float, decode_s: float) -> Profile:
    """The small profile, whose devices all take so many seconds per byte in every codec."""
    made = tuple(
        CodecTime(codec=codec, encode_s_per_byte=encode_s, decode_s_per_byte=decode_s) for codec in (*LOSSES, "top-k")
    )
    return replace(fleets.PROFILE, times=tuple(replace(times, codecs=made) for times in fleets.PROFILE.times))


def codecs(plan: Plan) -> dict[str, str]:
    """Codec by `ab`."""
    return {use.source + use.target: use.codec for use in plan.links}


def brute_force(plan: Plan, clock: Clock, allowed: tuple[Choice, ...]) -> float:
    """The shortest round over all assignments, written apart."""
    pairs = sorted({(t.source, t.target) for t in clock.lower(plan).transfers})
    rounds = []
    for assigned in product((NONE, *allowed), repeat=len(pairs)):
        uses = tuple(
            LinkUse(source=a, target=b, codec=one.codec, ratio=one.ratio)
            for (a, b), one in zip(pairs, assigned, strict=True)
        )
        rounds.append(clock.round_s(replace(plan, links=uses)))
    return min(rounds)


@st.composite
def instances(draw: st.DrawFn) -> Clock:
    """Uneven links, and codecs from free to as slow as the links."""
    names = ("ab", "ba", "bc", "cb", "ac", "ca")
    rates = {name: draw(st.sampled_from([1e4, 5e4, 2e5, 1e6, 1e8])) for name in names}
    seconds = st.sampled_from([0.0, 1e-8, 1e-6, 5e-6])
    return Clock(fleet(rates), profile(draw(seconds), draw(seconds)))


@pytest.mark.parametrize("plan", [CHAIN, GROUP], ids=["chain", "group"])
@pytest.mark.parametrize("exact", [True, False], ids=["all", "local"])
@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(clock=instances())
def test_no_assignment_is_better(plan: Plan, exact: bool, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """On tiny plans the round is the shortest of all assignments; the local search of larger ones comes within 1 %."""
    monkeypatch.setattr(compression, "EXACT", 1500 if exact else 0)
    found, best_s = clock.round_s(with_codecs(plan, clock, TWO)), brute_force(plan, clock, TWO)
    assert found == best_s if exact else best_s <= found <= 1.01 * best_s


def test_a_link_that_is_fast_enough_stays_dense() -> None:
    """The same plan comes back where no codec shortens the round, and only slow links get one where some do."""
    fast = Clock(fleet({}, default=1e9), profile(1e-8, 1e-8))
    assert with_codecs(CHAIN, fast, TWO) is CHAIN
    mixed = Clock(fleet({"bc": 1e4, "cb": 1e4}, default=1e9), profile(1e-8, 1e-8))
    assert set(codecs(with_codecs(CHAIN, mixed, TWO))) == {"bc", "cb"}


def test_of_two_codecs_that_are_equally_fast_the_one_that_loses_less_is_taken() -> None:
    """64 elements have as many bytes in int8 with as without a rotation; the order of the two does not matter."""
    units = tuple(replace(unit, output_bytes=256, gradient_bytes=256) for unit in fleets.PROFILE.units)
    clock = Clock(fleet({}, default=1e4), replace(profile(0.0, 0.0), units=units))
    two = (Choice("int8", 1.0, 0.013), Choice("int8-hadamard", 1.0, 0.007))
    for allowed in (two, two[::-1]):
        assert set(codecs(with_codecs(CHAIN, clock, allowed)).values()) == {"int8-hadamard"}


def test_a_codec_that_costs_more_than_it_saves_is_left_out() -> None:
    """A slow link gets a codec while that is cheap; where coding takes longer than the link, it stays dense."""
    slow = fleet({}, default=1e5)
    assert codecs(with_codecs(CHAIN, Clock(slow, profile(1e-8, 1e-8)), TWO))
    assert not codecs(with_codecs(CHAIN, Clock(slow, profile(1e-4, 1e-4)), TWO))


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (0.0001, set()),
        (0.001, {"fp16"}),
        (None, {"fp16", "bf16", "int8", "int8-hadamard"}),
        (0.15, {"fp16", "bf16", "int8", "int8-hadamard", "int4-hadamard"}),
        (0.3, {"fp16", "bf16", "int8", "int8-hadamard", "int4", "int4-hadamard"}),
        (0.7, {"fp16", "bf16", "int8", "int8-hadamard", "int4", "int4-hadamard", "top-k"}),
    ],
)
def test_a_bound_admits_codecs_that_lose_no_more(loss: float | None, expected: set[str]) -> None:
    """Without a bound 2 % of a message may be lost; top-k has the largest ratio within it, where it sends the least."""
    found = choices("auto", loss)
    assert {one.codec for one in found} == expected
    assert all(one.loss <= (loss or 0.02) for one in found)
    for one in found:
        if one.codec == "top-k":
            assert top_k_loss(one.ratio) <= 0.7 < top_k_loss(1.5 * one.ratio)


def lost(codec: str, tensor: torch.Tensor, ratio: float = 1.0) -> float:
    """The relative L2 norm of what a codec changes."""
    sent = encode(codec, tensor, ratio)
    return float((decode(sent.description, sent.parts) - tensor).norm() / tensor.norm())


def test_losses_are_what_codecs_lose_on_gaussian_data() -> None:
    """No codec loses more than its table says; top-k loses what the formula says, within 2 %."""
    tensor = torch.randn((4, 1 << 15), generator=torch.Generator().manual_seed(1))
    for codec, stated in LOSSES.items():
        assert stated / 4 < lost(codec, tensor) <= stated
    for ratio in RATIOS:
        assert lost("top-k", tensor, ratio) == pytest.approx(top_k_loss(ratio), rel=0.02)
    assert top_k_loss(1.0) == 0.0 and top_k_loss(1e6) < 1.0


def test_losses_hold_for_data_with_outliers() -> None:
    """One element in 512 is 16 times as large, as in activations of transformers."""
    tensor = torch.randn((4, 1 << 15), generator=torch.Generator().manual_seed(2))
    tensor.view(-1)[::512] = 16.0
    assert all(lost(codec, tensor) <= stated for codec, stated in LOSSES.items())


@pytest.mark.parametrize("name", ["fusionllm", "asteroid"])
def test_a_strategy_chooses_codecs_and_its_round_is_never_longer(name: str) -> None:
    """Slow links get codecs within the bound, and the round is at most that of dense links."""
    slow = replace(small(), fleet=fleet({}, default=1e4), profile=profile(1e-8, 1e-8))
    devices: dict[str, Any] = {"every_device": True} if name == "asteroid" else {"method": "equal-modules"}

    def solved(**options: Any) -> Any:
        return solve(name, replace(slow, options={**devices, **options}))

    dense, auto, one = solved(), solved(compression="auto"), solved(compression="bf16")
    assert auto.objective < one.objective < dense.objective
    assert set(codecs(auto.plan).values()) <= {"fp16", "bf16", "int8", "int8-hadamard"}
    assert set(codecs(one.plan).values()) == {"bf16"}
    assert solved(compression="auto", compression_loss=1e-5).plan.lanes == dense.plan.lanes


FED = [
    {"compression": "auto"},
    {"compression": "int8"},
    {"compression_ratio": 50.0},
    {"compression": "forward-mask", "compression_ratio": 50.0},
]


@pytest.mark.parametrize("name", ["fusionllm", "asteroid"])
@pytest.mark.parametrize("options", FED)
@pytest.mark.parametrize("roomy", ["", "a", "b", "abc"])
def test_error_feedback_takes_only_memory_that_is_there(name: str, options: dict[str, Any], roomy: str) -> None:
    """Where devices have memory for the dense plan and no byte more, their links stay dense; those of roomy devices may
    have codecs. Error feedback makes no problem infeasible."""
    slow = replace(small(), fleet=fleet({}, default=1e4), profile=profile(1e-8, 1e-8))
    devices: dict[str, Any] = {"every_device": True} if name == "asteroid" else {"method": "equal-modules"}
    dense = solve(name, replace(slow, options=devices))
    clock = Clock(slow.fleet, slow.profile)
    tight = tuple(
        device if device.name in roomy else replace(device, memory_bytes=clock.memory_bytes(dense.plan, device.name))
        for device in slow.fleet.devices
    )
    posed = replace(slow, fleet=replace(slow.fleet, devices=tight))
    found = solve(name, replace(posed, options={**devices, **options, "compression_feedback": True}))
    fed = {use.source for use in found.plan.links if use.feedback}
    assert fed <= set(roomy) and bool(fed) >= ("a" in roomy)
    assert found.objective <= dense.objective * (1 if "compression" in options else 1.001), "top-k looks at links alone"


def test_error_feedback_leaves_memory_to_backups() -> None:
    """With memory for backups and no byte more, links stay dense; the rounds between two backups are those of the plan
    that is compressed."""
    slow = replace(small(), fleet=fleet({}, default=1e4), profile=profile(1e-8, 1e-8))
    options: dict[str, Any] = {"backups": 1, "every_device": True}
    fed = {**options, "compression": "int8", "compression_feedback": True}
    roomy, dense = solve("asteroid", replace(slow, options=fed)), solve("asteroid", replace(slow, options=options))
    clock = Clock(slow.fleet, slow.profile)
    sizes = {device: clock.memory_bytes(dense.plan, device) for device in dense.plan.devices}
    tight = tuple(replace(device, memory_bytes=sizes[device.name]) for device in slow.fleet.devices)
    found = solve("asteroid", replace(slow, fleet=replace(slow.fleet, devices=tight), options=fed))
    assert roomy.plan.links and not found.plan.links and found.plan.backups
    assert roomy.plan.backup_every_rounds == rounds_between(roomy.plan, slow, clock)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"compression": "zip"}, "compression is 'zip'; allowed are auto, fp16, bf16, int8, int4, int8-hadamard"),
    ({"compression": "dense"}, "allowed are auto, fp16"),
    ({"compression": "forward-mask"}, "compression forward-mask needs a compression_ratio"),
    (
        {"compression": "auto", "compression_ratio": 10},
        "compression_ratio belongs to compression top-k and forward-mask, not to auto",
    ),
    ({"compression": "top-k"}, "compression top-k needs a compression_ratio"),
    ({"compression": "auto", "compression_loss": 1.5}, "compression_loss 1.5 is not below 1"),
    ({"compression": "auto", "compression_loss": 0}, "compression_loss must be a number above 0"),
    ({"compression": "int8", "compression_loss": 0.1}, "compression_loss bounds what compression auto may lose"),
]


@pytest.mark.parametrize("name", ["fusionllm", "asteroid"])
@pytest.mark.parametrize(("options", "words"), WRONG)
def test_options_that_make_no_sense_are_refused(name: str, options: dict[str, Any], words: str) -> None:
    """The error says what is allowed, or which option to leave out."""
    with pytest.raises(Refused, match=words):
        solve(name, small(**options))


def test_what_rotates_is_cited() -> None:
    """auto may choose a Hadamard rotation, whose paper is then cited."""
    for option, cited in (("auto", True), ("int4-hadamard", True), ("bf16", False)):
        texts = citations(StrategyRequest(name="asteroid", options={"compression": option}))
        assert (papers.TAH_QUANT in texts) is cited


def test_top_k_is_charged_its_coding() -> None:
    """Adaptive top-k leaves a link dense where coding takes longer than what it saves."""
    slow = fleet({}, default=1e5)
    assert with_top_k(CHAIN, Clock(slow, profile(1e-8, 1e-8)), 100.0).links
    assert with_top_k(CHAIN, Clock(slow, profile(1e-4, 1e-4)), 100.0) is CHAIN


def test_plans_do_not_depend_on_what_was_solved_before() -> None:
    """The same problem gives the same links."""
    clock = Clock(fleet({"ab": 1e4, "cb": 3e4}), profile(1e-7, 1e-7))
    assert with_codecs(CHAIN, clock, TWO) == with_codecs(CHAIN, Clock(clock.fleet, clock.profile), TWO)
    assert math.isfinite(clock.round_s(with_codecs(CHAIN, clock, TWO)))


def test_each_link_keeps_as_much_as_its_slack_allows() -> None:
    """auto thins the link that the round waits for, and one whose device would wait only as far as that shortens the
    round.
    """
    units = tuple(replace(unit, output_bytes=8192, gradient_bytes=8192) for unit in fleets.UNITS)
    known = replace(profile(1e-8, 1e-8), units=units)
    clock = Clock(fleet({"ac": 1e5, "ca": 1e5}, default=1e4), known)
    allowed = (Choice("top-k", 100.0, top_k_loss(100.0)),)
    found = with_codecs(GROUP, clock, allowed)
    ratios = {use.source + use.target: use.ratio for use in found.links}
    every = replace(found, links=tuple(replace(use, ratio=100.0) for use in found.links))
    assert clock.round_s(found) <= clock.round_s(every)
    assert min(ratios.values()) < max(ratios.values()) <= 100.0, ratios
    for use in found.links:
        milder = [ratio for ratio in RATIOS if ratio < use.ratio]
        for ratio in milder:
            other = tuple(replace(each, ratio=ratio) if each is use else each for each in found.links)
            assert clock.round_s(replace(found, links=other)) > clock.round_s(found), (use, ratio)


def test_gradients_come_back_at_what_the_forward_kept() -> None:
    """With forward-mask values cross in top-k and gradients without indices, at the ratio of the values."""
    options = {"compression": "forward-mask", "compression_ratio": 50.0}
    problem = replace(small(method="equal-modules"), fleet=fleet({}, default=1e4))
    masked = solve("fusionllm", replace(problem, options={**problem.options, **options})).plan
    plain = solve("fusionllm", replace(problem, options={**problem.options, **options, "compression": "top-k"})).plan
    assert {use.codec for use in plain.links} == {"top-k"} and {use.codec for use in masked.links} == {
        "top-k",
        "forward-mask",
    }
    by_pair = {(use.source, use.target): use for use in masked.links}
    for (a, b), use in by_pair.items():
        if use.codec == "forward-mask":
            assert by_pair[b, a].codec == "top-k" and by_pair[b, a].ratio == use.ratio
    clock = Clock(problem.fleet, problem.profile)
    assert clock.round_s(masked) < clock.round_s(plain)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_the_slowest_link_sends_one_byte_in_so_many_in_any_precision(size: int) -> None:
    """Kept elements are bfloat16, so that of a model in bfloat16 fewer may be kept for the same share of bytes."""
    units = tuple(replace(u, output_bytes=8 * 4096, gradient_bytes=8 * 4096) for u in fleets.UNITS)
    known = replace(profile(0.0, 0.0), units=units, element_bytes=size)
    clock = Clock(fleet({}, default=1e4), known)
    thin = with_top_k(CHAIN, clock, 20.0)
    sent = {row.device: row.bytes for row in clock.forecast(thin).rows if row.is_transfer}
    assert max(sent.values()) == pytest.approx(4 * 8 * 4096 / 20, rel=0.02)
