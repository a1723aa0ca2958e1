"""A small fleet, profile and plan that many tests share."""

from fleetune.contracts.fleet import Device, Fleet, Link
from fleetune.contracts.plan import Lane, Plan, Segment, Share
from fleetune.contracts.profile import DeviceTimes, Profile, Unit


def device(name: str, memory_bytes: int = 10**9) -> Device:
    """A device of one core."""
    return Device(name=name, memory_bytes=memory_bytes, cores=1.0, fingerprint=f"of {name}")


def fleet(*devices: Device, bytes_per_s: float = 1e6, latency_s: float = 0.001) -> Fleet:
    """Devices with equal links between all of them."""
    names = [d.name for d in devices]
    links = [
        Link(source=a, target=b, latency_s=latency_s, bytes_per_s=bytes_per_s) for a in names for b in names if a != b
    ]
    return Fleet(devices=devices, links=tuple(links))


def unit(name: str, *, param_bytes: int = 1000, activation_bytes: int = 100, cut_after: bool = True) -> Unit:
    """A fully trained unit with 200 bytes per sample across its cut each way."""
    return Unit(
        name=name,
        param_bytes=param_bytes,
        trainable_bytes=param_bytes,
        activation_bytes=activation_bytes,
        output_bytes=200,
        gradient_bytes=200,
        flops=1000,
        cut_after=cut_after,
    )


def profile(units: list[Unit], paces: dict[str, float], work: list[float] | None = None) -> Profile:
    """Unit k takes work[k]·pace seconds per sample forward and twice that backward, plus 10 % of a sample a batch."""
    work = work or [1.0] * len(units)
    sizes = (1, 2, 4, 8)

    def table(pace: float) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(w * pace * (size + 0.1) for size in sizes) for w in work)

    times = tuple(
        DeviceTimes(device=name, runtime_bytes=50, forward_s=table(pace), backward_s=table(2 * pace))
        for name, pace in paces.items()
    )
    return Profile(model="small", units=tuple(units), batch_sizes=sizes, times=times)


def plan(*segments: tuple[str, dict[str, int], int], micro_batches: int = 3) -> Plan:
    """A plan of one lane `main` from segments such as ("u0 u1", {"a": 2}, warm-up)."""
    made = tuple(
        Segment(
            units=tuple(units.split()),
            shares=tuple(Share(device=name, samples=samples) for name, samples in shares.items()),
            warmup=warmup,
        )
        for units, shares, warmup in segments
    )
    batch = sum(segments[0][1].values())
    return Plan(
        strategy="by hand",
        micro_batch_samples=batch,
        micro_batches=micro_batches,
        lanes=(Lane(name="main", segments=made),),
    )


PACES = {"a": 0.001, "b": 0.002, "c": 0.004}
FLEET = fleet(device("a"), device("b"), device("c"))
UNITS = [unit(f"u{k}") for k in range(4)]
PROFILE = profile(UNITS, PACES)
PLAN = plan(("u0 u1", {"a": 4}, 3), ("u2 u3", {"b": 3, "c": 1}, 1))
