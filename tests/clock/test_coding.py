"""What codecs cost: bytes value by value, and seconds on the processors at both ends of a link."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleetune.clock import Clock, forecast
from fleetune.clock.coding import Coding
from fleetune.clock.costs import nanoseconds
from fleetune.clock.link_costs import lost_s_per_byte
from fleetune.clock.spread import scaled_profile
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.link_codecs import CODECS, DENSE, FORWARD_MASK, wire_bytes
from fleetune.contracts.plan import BACKWARD, FORWARD, LinkUse, Plan, parse_action
from fleetune.contracts.profile import CodecTime, DeviceTimes, Profile
from fleetune.errors import Refused
from fleetune.program import program_of
from fleetune.program.execution import carry_out
from tests.support.clock import reference, ticks
from tests.support.clock.pipelines import Member, Pipeline, PipelineStage, spans
from tests.support.clock.plans import chains, with_neutral_link
from tests.support.clock.ticks import TICK_S, drawn, picture, segment

THERE, BACK = LinkUse(source="a", target="b", codec="int8"), LinkUse(source="b", target="a", codec="int8")
FLEET = ticks.fleet("a b")


def coded(profile: Profile, **seconds: tuple[float, float]) -> Profile:
    """The profile with ticks per byte of int8 on each device: encoding, decoding."""

    def timed(times: DeviceTimes) -> DeviceTimes:
        encode, decode = seconds.get(times.device, (0.0, 0.0))
        made = CodecTime(codec="int8", encode_s_per_byte=encode * TICK_S, decode_s_per_byte=decode * TICK_S)
        return replace(times, codecs=(made,))

    return replace(profile, times=tuple(timed(times) for times in profile.times))


def two(elements: tuple[int, ...] | None = None, out: int = 16, back: int = 16) -> Profile:
    """Two units of a tick each way on two devices."""
    first = replace(ticks.unit("u0", out=out, back=back), coded_elements=elements)
    return ticks.profile([first, ticks.unit("u1")], {name: ([1, 1], [1, 1]) for name in "ab"})


def chain(*uses: LinkUse) -> Plan:
    """A first half on a, a second half on b."""
    return replace(ticks.plan({"main": [segment("u0", "a"), segment("u1", "b")]}), links=uses)


def test_each_end_of_a_link_pays_for_its_codec() -> None:
    """16 bytes are 6 on the wire. a encodes in 4 ticks after its forward, b decodes in 2 before its own; of the
    gradient b encodes in 8, a decodes in 16."""
    profile = coded(two(), a=(0.25, 1.0), b=(0.5, 0.125))
    assert picture(chain(THERE, BACK), FLEET, profile) == drawn("""
  a 00000........................aaaaaaaaaaaaaaaaa
  b ...........000aaaaaaaaa.......................
a>b .....000000...................................
b>a .......................aaaaaa.................
""")


def test_each_coded_tensor_costs_its_own_part() -> None:
    """Beside 0.25 ticks a byte, each of two values of 8 bytes takes 3 ticks to encode on a and 2 to decode on b; with
    error feedback a decodes, too. A dense link pays for none."""
    plain = coded(two(elements=(2, 2)), a=(0.25, 0.25), b=(0.5, 0.125))
    parts = {"encode_s": 3 * TICK_S, "decode_s": 2 * TICK_S}
    profile = replace(
        plain,
        times=tuple(replace(times, codecs=(replace(times.codecs[0], **parts),)) for times in plain.times),
    )

    def took(use: LinkUse, known: Profile) -> dict[str, int]:
        rows = [row for row in forecast(chain(use), FLEET, known).rows if not row.is_transfer]
        return {row.action.removeprefix("main/"): ticks.ticks(row.end_s - row.start_s) for row in rows}

    assert took(THERE, plain) == {"0F0": 1 + 4, "1F0": 1 + 2, "1B0": 1, "0B0": 1}
    assert took(THERE, profile) == {"0F0": 1 + 4 + 2 * 3, "1F0": 1 + 2 + 2 * 2, "1B0": 1, "0B0": 1}
    assert took(replace(THERE, feedback=True), profile)["0F0"] == 1 + 8 + 2 * 3 + 2 * 2
    adding = tuple(replace(times, feedback_s_per_byte=TICK_S) for times in profile.times)
    assert took(replace(THERE, feedback=True), replace(profile, times=adding))["0F0"] == 1 + 8 + 2 * 3 + 2 * 2 + 16
    assert took(replace(THERE, codec=DENSE), profile) == {"0F0": 1, "1F0": 1, "1B0": 1, "0B0": 1}
    between = replace(profile.times[0], codecs=(*profile.times[0].codecs,)).codec_time("int8")
    assert (between.encode_s, between.decode_s) == (3 * TICK_S, 2 * TICK_S)


def test_coding_is_stretched_as_passes_are() -> None:
    """On a machine where a second of work takes two, a's 4 ticks of encoding and its pass do."""
    profile = coded(two(), a=(0.25, 1.0), b=(0.5, 0.125))
    slow = replace(profile, times=(replace(profile.times[0], stretch=2.0), profile.times[1]))
    rows = [row for row in forecast(chain(THERE, BACK), FLEET, slow).rows if not row.is_transfer]
    took = {row.action.removeprefix("main/"): ticks.ticks(row.end_s - row.start_s) for row in rows}
    assert took == {"0F0": 2 * (1 + 4), "1F0": 1 + 2, "1B0": 1 + 8, "0B0": 2 * (1 + 16)}


def test_a_slower_device_codes_slower() -> None:
    """The interval of a forecast, and plans around a straggler, have its codecs as much slower as its passes."""
    whole = coded(two(), a=(0.25, 1.0), b=(0.5, 0.125))
    fed = tuple(replace(times, feedback_s_per_byte=TICK_S) for times in whole.times)
    times = scaled_profile(replace(whole, times=fed), {"a": 3.0}).times
    assert times[0].codec_time("int8").encode_s_per_byte == pytest.approx(0.75 * TICK_S)
    assert times[0].codec_time("int8").decode_s_per_byte == pytest.approx(3.0 * TICK_S)
    assert (times[0].feedback_s_per_byte, times[1]) == (pytest.approx(3.0 * TICK_S), fed[1])


def test_only_links_with_a_codec_pay() -> None:
    """A dense direction costs nothing, whatever the profile says of codecs."""
    profile = coded(two(), a=(0.25, 1.0), b=(0.5, 0.125))
    rows = {row.action: row for row in forecast(chain(THERE), FLEET, profile).rows if not row.is_transfer}
    took = {action: ticks.ticks(row.end_s - row.start_s) for action, row in rows.items()}
    assert took == {"main/0F0": 1 + 4, "main/1F0": 1 + 2, "main/1B0": 1, "main/0B0": 1}
    assert forecast(chain(), FLEET, profile) == forecast(chain(), FLEET, two())


def test_what_a_codec_does_not_change_costs_no_time() -> None:
    """Of 20 bytes 4 are a mask's, which is not coded; where a value has no elements to spare, nothing is."""
    for elements, wire, encoding in (((4,), 6 + 4, 16), ((), 20, 0)):
        profile = coded(two(elements=elements, out=20), a=(1.0, 0.0))
        rows = {row.device: row for row in forecast(chain(THERE), FLEET, profile).rows if row.action == "main/0F0"}
        assert rows["a>b"].bytes == wire
        assert ticks.ticks(rows["a"].end_s) == 1 + encoding


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(CODECS),
    st.lists(st.integers(1, 300), max_size=3),
    st.integers(0, 50),
    st.integers(1, 5),
    st.floats(1, 50),
    st.sampled_from([4, 8]),
)
def test_every_value_is_coded_on_its_own_and_what_is_no_activation_not_at_all(
    codec: str, elements: list[int], other: int, samples: int, ratio: float, element_bytes: int
) -> None:
    """The bytes of a message are the sum over its values, and those of masks and positions stay."""
    dense = sum(elements) * element_bytes
    unit = replace(ticks.unit("u", out=dense + other, back=dense), coded_elements=tuple(elements))
    profile = replace(two(), element_bytes=element_bytes)
    use = LinkUse(source="a", target="b", codec=codec, ratio=ratio if codec in ("top-k", FORWARD_MASK) else 1.0)
    found = {letter: Coding(profile).message_bytes(unit, letter, samples, use) for letter in (FORWARD, BACKWARD)}
    for letter, plain in ((FORWARD, other), (BACKWARD, 0)):
        each = [
            wire_bytes(n * element_bytes, samples, use.codec_of(letter), use.ratio, element_bytes) for n in elements
        ]
        assert found[letter] == sum(each) + samples * plain <= samples * (dense + plain)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(chains(), st.data())
def test_both_simulations_agree_on_chains_with_codecs(
    drawn_chain: tuple[Plan, Fleet, Profile], data: st.DataObject
) -> None:
    """A chain whose links all have int8 is the dense chain of its wire bytes and of tasks that take as much longer."""
    plan, fleet, small = drawn_chain
    large = tuple(
        replace(unit, output_bytes=16 * unit.output_bytes, gradient_bytes=16 * unit.gradient_bytes)
        for unit in small.units
    )
    profile = replace(small, units=large)
    rates = st.sampled_from([0.0, 0.25, 0.5, 1.0])
    profile = coded(profile, **{times.device: (data.draw(rates), data.draw(rates)) for times in profile.times})
    names = plan.devices
    uses = tuple(LinkUse(source=a, target=b, codec="int8") for a in names for b in names if a != b)
    clock = Clock(fleet, profile)
    if len(names) < 2 or carry_out(program_of(plan, profile)).deadlocked:
        return
    round_ns, log = reference.play(_as_dense(clock, plan, profile, fleet))
    found = clock.forecast(replace(plan, links=uses))
    segments = enumerate(plan.lanes[0].segments)
    seats = {name: (p, place) for p, segment in segments for place, name in enumerate(segment.devices)}
    assert spans(found.rows, seats) == log
    assert found.round_s == round_ns / 1e9


def _as_dense(clock: Clock, plan: Plan, profile: Profile, fleet: Fleet) -> Pipeline:
    """The pipeline of a chain with int8 on all links, whose numbers are worked out here once more."""
    made, before, segments = [], (0, 0), plan.lanes[0].segments
    orders = {order.device: tuple(map(parse_action, order.actions)) for order in plan.order}
    for placed in segments:
        last = profile.unit(placed.units[-1])
        after = (0, 0) if placed is segments[-1] else (last.output_bytes, last.gradient_bytes)
        members = []
        for share in placed.shares:
            time = profile.times_of(share.device).codec_time("int8")
            lost = lost_s_per_byte(fleet.device(share.device))
            forward, backward = (sum(t) for t in _units(clock, plan, placed.units, share))
            sent, got, back, returned = (_wire(size) for size in (after[0], before[0], before[1], after[1]))
            codes = [
                _coded(after[0]) * time.encode_s_per_byte + _coded(before[0]) * time.decode_s_per_byte,
                _coded(before[1]) * time.encode_s_per_byte + _coded(after[1]) * time.decode_s_per_byte,
            ]
            ends = [
                nanoseconds(seconds + lost * share.samples * moved + share.samples * code)
                for seconds, moved, code in zip((forward, backward), (got + sent, back + returned), codes, strict=True)
            ]
            order = tuple((action.letter, action.micro_batch) for action in orders.get(share.device, ()))
            members.append(Member(plan.devices.index(share.device), share.samples, ends[0], ends[1], order))
        sizes = clock.sums.summed_bytes(placed), _wire(after[0]), _wire(after[1])
        made.append(PipelineStage(tuple(members), placed.warmup, *sizes))
        before = after
    links = [[None if a == b else fleet.link(a, b) for b in plan.devices] for a in plan.devices]
    return Pipeline(
        tuple(made),
        plan.micro_batches,
        tuple(tuple(link.bytes_per_s if link else 1.0 for link in row) for row in links),
        tuple(tuple(link.latency_s if link else 0.0 for link in row) for row in links),
    )


def _units(clock: Clock, plan: Plan, units: tuple[str, ...], share: object) -> list[list[float]]:
    known = [unit.name for unit in clock.profile.units]
    return [[row[known.index(u)] for u in units] for row in clock.unit_times(share.device, share.samples)]  # type: ignore[attr-defined]


def _wire(size: int) -> int:
    return wire_bytes(size, 1, "int8")


def _coded(size: int) -> int:
    return size if _wire(size) < size else 0


@pytest.mark.parametrize(("ratio", "encode"), [(2.0, 5.34375), (4.0, 3.0), (10.0, 1.59375), (100.0, 0.75), (1e6, 0.75)])
def test_times_between_measured_ratios_are_linear_in_what_is_kept(ratio: float, encode: float) -> None:
    """Of more elements than were measured the line goes on, of fewer the fewest count: there is less to save. A codec
    without a time takes none."""
    made = tuple(
        CodecTime(codec="top-k", ratio=r, encode_s_per_byte=s, decode_s_per_byte=0.0)
        for r, s in ((100.0, 0.75), (4.0, 3.0))
    )
    times = replace(two().times[0], codecs=made)
    assert times.codec_time("top-k", ratio).encode_s_per_byte == pytest.approx(encode)
    assert times.codec_time("top-k", ratio).decode_s_per_byte == 0.0
    assert times.codec_time("int4").encode_s_per_byte == 0.0


def test_a_time_of_an_unknown_codec_is_refused() -> None:
    """The error says which codecs there are."""
    with pytest.raises(Refused, match="codec zip: codec is 'zip'; allowed are dense, fp16, bf16, int8"):
        CodecTime(codec="zip", encode_s_per_byte=0.0, decode_s_per_byte=0.0)
    with pytest.raises(Refused, match="codec int8: decode_s_per_byte must be"):
        CodecTime(codec="int8", encode_s_per_byte=0.0, decode_s_per_byte=-1.0)


def test_neutral_links_keep_every_row() -> None:
    """Times of codecs in a profile change no forecast of a plan without them."""
    profile, plan = coded(two(), a=(1.0, 1.0), b=(1.0, 1.0)), chain()
    assert forecast(with_neutral_link(plan, FLEET), FLEET, profile) == forecast(plan, FLEET, two())
    assert all(use.codec == DENSE for use in plan.links)
