"""Chains of segments with explicit orders for hypothesis, ties and deadlocks included."""

from dataclasses import replace

from hypothesis import strategies as st

from fleetune.contracts.fleet import Fleet, Link
from fleetune.contracts.plan import DeviceOrder, Lane, LinkUse, Plan, Segment, Share
from fleetune.contracts.profile import Profile, Unit
from tests.support.clock import fleets, ticks


@st.composite
def chains(draw: st.DrawFn) -> tuple[Plan, Fleet, Profile]:
    """Chains of up to 3 segments on up to 2 devices each, with uneven shares, some orders, and CPU costs of links."""
    count, batch, micro_batches = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    names = iter("abcdef")
    segments = []
    for k in range(count):
        first = draw(st.integers(1, batch))
        parts = [first, batch - first] if first < batch else [first]
        shares = tuple(Share(device=next(names), samples=samples) for samples in parts)
        segments.append(Segment(units=(f"u{k}",), shares=shares, warmup=draw(st.integers(1, 4))))
    devices = [name for segment in segments for name in segment.devices]
    tick = st.lists(st.integers(0, 4), min_size=count, max_size=count)
    profile = ticks.profile(
        [_unit(draw, k) for k in range(count)], {name: (draw(tick), draw(tick)) for name in devices}
    )
    plan = Plan(
        strategy="drawn",
        micro_batch_samples=batch,
        micro_batches=micro_batches,
        lanes=(Lane(name="main", segments=tuple(segments)),),
        order=tuple(
            _order(draw, name, k, micro_batches)
            for k, segment in enumerate(segments)
            for name in segment.devices
            if draw(st.integers(0, 3)) == 0
        ),
    )
    return plan, _fleet(draw, devices), profile


def with_neutral_link(plan: Plan, fleet: Fleet) -> Plan:
    """The same plan with a neutral link use, which makes it a general plan instead of a chain."""
    devices = [device.name for device in fleet.devices]
    ends = devices[:2] if len(devices) > 1 else [devices[0], "nobody"]
    made = replace(plan, links=(LinkUse(source=ends[0], target=ends[1]),))
    assert plan.is_chain and not made.is_chain
    return made


def _unit(draw: st.DrawFn, k: int) -> Unit:
    small = st.integers(0, 3)
    return ticks.unit(f"u{k}", trained=draw(st.integers(0, 9)), out=draw(small), back=draw(small))


def _fleet(draw: st.DrawFn, devices: list[str]) -> Fleet:
    cost = st.sampled_from([0.0, 0.5e-9, 1e-9, 0.3e-9])
    rate, latency = st.sampled_from([0.5e9, 1e9, 2e9]), st.sampled_from([0.0, 1e-9, 3e-9])
    links = tuple(
        Link(source=a, target=b, latency_s=draw(latency), bytes_per_s=draw(rate))
        for a in devices
        for b in devices
        if a != b
    )
    made = tuple(replace(fleets.device(name), link_cpu_s_per_byte=draw(cost)) for name in devices)
    return Fleet(devices=made, links=links)


def _order(draw: st.DrawFn, name: str, segment: int, micro_batches: int) -> DeviceOrder:
    """A random order in which every forward precedes its backward."""
    tasks = draw(st.permutations([m for m in range(micro_batches) for _ in "FB"]))
    begun: set[int] = set()
    actions = []
    for m in tasks:
        actions.append(f"main/{segment}{'B' if m in begun else 'F'}{m}")
        begun.add(m)
    return DeviceOrder(device=name, actions=tuple(actions))
