"""Fleets, profiles and plans in ticks of 1 ns and a byte per tick, and forecasts as pictures of a column per tick."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fleetune.clock import forecast
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.metrics import TimelineRow
from fleetune.contracts.plan import DeviceOrder, Lane, Plan, Segment, Share
from fleetune.contracts.profile import DeviceTimes, Profile, Unit
from tests.support.clock import fleets

TICK_S = 1e-9


def fleet(names: str, latency: int = 0) -> Fleet:
    """Devices with links of a byte per tick between all of them."""
    made = (fleets.device(name) for name in names.split())
    return fleets.fleet(*made, bytes_per_s=1 / TICK_S, latency_s=latency * TICK_S)


def unit(name: str, *, trained: int = 0, out: int = 1, back: int = 1) -> Unit:
    """A unit with `trained` trainable bytes, and `out` and `back` bytes across its cut."""
    return replace(fleets.unit(name, param_bytes=trained, activation_bytes=10), output_bytes=out, gradient_bytes=back)


def profile(units: Sequence[Unit], times: Mapping[str, tuple[Sequence[int], Sequence[int]]]) -> Profile:
    """A profile from each device's ticks per unit, forward and backward, for one sample."""
    made = tuple(
        DeviceTimes(
            device=name,
            runtime_bytes=0,
            forward_s=tuple((value * TICK_S,) for value in forward),
            backward_s=tuple((value * TICK_S,) for value in backward),
        )
        for name, (forward, backward) in times.items()
    )
    return Profile(model="ticks", units=tuple(units), batch_sizes=(1,), times=made)


def segment(units: str, devices: str, *, warmup: int = 1, trains: str = "") -> Segment:
    """A segment with one sample of every micro-batch on each device."""
    shares = tuple(Share(device=name, samples=1) for name in devices.split())
    return Segment(units=tuple(units.split()), shares=shares, warmup=warmup, trains=tuple(trains.split()))


def plan(
    lanes: Mapping[str, Sequence[Segment]], *, micro_batches: int = 1, orders: Mapping[str, str] | None = None
) -> Plan:
    """A plan from lanes by name and orders by device."""
    made = tuple(Lane(name=name, segments=tuple(segments)) for name, segments in lanes.items())
    return Plan(
        strategy="by hand",
        micro_batch_samples=sum(share.samples for share in made[0].segments[0].shares),
        micro_batches=micro_batches,
        lanes=made,
        order=tuple(DeviceOrder(device=name, actions=tuple(given.split())) for name, given in (orders or {}).items()),
    )


def picture(plan: Plan, fleet: Fleet, profile: Profile) -> list[str]:
    """The forecast, devices first, then links. Digits are forwards, letters (a is 0) backwards; lanes count on: with
    two lanes of three micro-batches 3 and d are the first of the second lane. U and R as in actions."""
    said = forecast(plan, fleet, profile)
    width = ticks(said.round_s)
    lanes = [lane.name for lane in plan.lanes]
    drawn: dict[str, list[str]] = {}
    for row in said.rows:
        cells = drawn.setdefault(row.device, list("." * width))
        span = slice(ticks(row.start_s), ticks(row.end_s))
        assert set(cells[span]) <= {"."}, f"{row.device} does two things at once"
        cells[span] = _sign(row, lanes.index(row.lane) * plan.micro_batches) * (span.stop - span.start)
    margin = max(map(len, drawn))
    return [f"{name:>{margin}} {''.join(drawn[name])}" for name in sorted(drawn, key=lambda n: (">" in n, n))]


def drawn(text: str) -> list[str]:
    """Split a drawing into lines."""
    return text.strip("\n").splitlines()


def ticks(seconds: float) -> int:
    """Convert seconds to ticks."""
    return round(seconds / TICK_S)


def _sign(row: TimelineRow, before: int) -> str:
    letter, micro_batch = row.action.split("/")[1].lstrip("0123456789")[:1], int(row.action[-1])
    number = before + micro_batch
    return {"F": str(number), "B": "abcdefghij"[number]}.get(letter, letter)
