"""Hand-made plans with everything strategies can decide beyond a chain."""

from dataclasses import replace

from fleetune.contracts.plan import DeviceOrder, Gate, Lane, LinkUse, Plan, Segment, Share
from fleetune.contracts.profile import Profile
from fleetune.contracts.subnet import Subnet, SubnetPart
from tests.support.clock import fleets

CLIENTS = ("phone-1", "phone-2", "laptop-1", "laptop-2")
PACES = {"phone-1": 0.008, "phone-2": 0.006, "laptop-1": 0.003, "laptop-2": 0.002, "tower-1": 0.001, "tower-2": 0.0015}
FLEET = fleets.fleet(*(fleets.device(name, 60_000) for name in PACES), bytes_per_s=2e5)
UNITS = [fleets.unit(name) for name in ("embed", *(f"layer.{k}" for k in range(6)), "norm", "head")]
HEADS = 6
SUBNETS = tuple(
    Subnet(
        name=f"layer.{block}#{head}",
        parts=(SubnetPart(unit=f"layer.{block}", share=1 / HEADS),),
        weight_magnitude=1.0,
        gradient_magnitude=1.0,
        fisher=(1.0,) * 20,
    )
    for block in range(6)
    for head in range(HEADS)
)
PROFILE: Profile = replace(fleets.profile(UNITS, PACES), subnets=SUBNETS)
NAMES = tuple(unit.name for unit in UNITS)


def segment(first: int, end: int, device: str, *, warmup: int = 1, trains: tuple[str, ...] = ()) -> Segment:
    """Units [first, end) of the model with 4 samples on one device."""
    return Segment(units=NAMES[first:end], shares=(Share(device=device, samples=4),), warmup=warmup, trains=trains)


def plan(strategy: str, lanes: dict[str, tuple[Segment, ...]], micro_batches: int) -> Plan:
    """A plan from lanes by name."""
    made = tuple(Lane(name=name, segments=segments) for name, segments in lanes.items())
    return Plan(strategy=strategy, micro_batch_samples=4, micro_batches=micro_batches, lanes=made)


def with_lanes() -> Plan:
    """Four clients keep the first and the last part of the model; two helpers run the middle, two clients each."""
    helper = dict(zip(CLIENTS, ("tower-1", "tower-2", "tower-1", "tower-2"), strict=True))
    lanes = {c: (segment(0, 2, c, warmup=2), segment(2, 7, helper[c], warmup=2), segment(7, 9, c)) for c in CLIENTS}
    orders = [DeviceOrder(device=c, actions=tuple(f"{c}/{k}" for k in OF_CLIENT.split())) for c in CLIENTS]
    for tower in ("tower-1", "tower-2"):
        mine = [c for c in reversed(CLIENTS) if helper[c] == tower]
        actions = (f"{c}/1{letter}{m}" for letter in "FB" for c in mine for m in range(2))
        orders.append(DeviceOrder(device=tower, actions=tuple(actions)))
    return replace(plan("split by hand", lanes, 2), order=tuple(orders))


OF_CLIENT = "0F0 0F1 2F0 2B0 2F1 2B1 0B0 0B1"


def with_collector() -> Plan:
    """Four devices tune a block or two each, with parts of one medium; a fifth collects."""
    trained = {
        "phone-1": ("layer.5", "norm", "head"),
        "phone-2": ("layer.3", "layer.4"),
        "laptop-1": ("layer.2",),
        "laptop-2": ("embed", "layer.1"),
    }
    lanes = {f"block-{k}": (segment(0, 9, d, trains=units),) for k, (d, units) in enumerate(trained.items())}
    shares = (0.125, 0.25, 0.25, 0.375)
    links = tuple(LinkUse(source=d, target="tower-1", share=s) for d, s in zip(trained, shares, strict=True))
    return replace(plan("tune by hand", lanes, 2), links=links, collector="tower-1")


def with_gates() -> Plan:
    """Heads of six blocks are trained, run forward only or skipped in turn; 20 micro-batches."""
    rows = ("11223", "12231", "22311", "23112", "31122", "11111")
    gates = tuple(
        Gate(subnet=subnet.name, operations=(rows[(k + k // HEADS) % len(rows)]) * 4)
        for k, subnet in enumerate(SUBNETS)
    )
    lanes = {"main": (segment(0, 5, "tower-1", warmup=2), segment(5, 9, "tower-2"))}
    return replace(plan("gates by hand", lanes, 20), gates=gates)


def with_links() -> Plan:
    """A chain of three over compressed and shared links."""
    lanes = {"main": tuple(segment(*ends) for ends in ((0, 3, "tower-1"), (3, 7, "laptop-2"), (7, 9, "tower-2")))}
    links = (
        LinkUse(source="tower-1", target="laptop-2", codec="top-k", ratio=100.0),
        LinkUse(source="laptop-2", target="tower-1", codec="top-k", ratio=100.0, share=0.25),
        LinkUse(source="laptop-2", target="tower-2", codec="top-k", ratio=12.5),
        LinkUse(source="tower-2", target="laptop-2", share=0.5),
    )
    return replace(plan("links by hand", lanes, 3), links=links)


PLANS: dict[str, Plan] = {
    "lanes": with_lanes(),
    "deft": with_collector(),
    "gates": with_gates(),
    "links": with_links(),
}
