"""Processor time per byte of links."""

import pytest

from fleetune.discovery.link_probe import LinkProbe, ProbeResult, link_cpu_s_per_byte

SIZES_BYTES = (0, 1 << 10, 1 << 16, 1 << 20)


def probe(source: str, target: str, sent: float, received: float, sizes: tuple[int, ...] = SIZES_BYTES) -> LinkProbe:
    """Probe with the given costs per byte plus 100 us per message, and a tenfold stall in one of five repeats."""

    def side(per_byte: float) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple((1e-4 + per_byte * size) * stall for stall in (1, 1, 10, 1, 1)) for size in sizes)

    times = tuple((1.0,) * 5 for _ in sizes)
    probed = ProbeResult(sizes_bytes=sizes, round_trips_s=times, sender_cpu_s=side(sent), receiver_cpu_s=side(received))
    return LinkProbe(source=source, target=target, probed=probed)


def test_both_sides_of_every_link_count() -> None:
    """The cost is the mean of sending (1 ns) and receiving (3 ns) without the cost of empty messages."""
    probes = [probe("a", "b", 1e-9, 2e-9), probe("b", "a", 4e-9, 3e-9), probe("b", "c", 8e-9, 8e-9)]
    assert link_cpu_s_per_byte("a", probes) == pytest.approx(2e-9)
    assert link_cpu_s_per_byte("b", probes) == pytest.approx((6e-9 + 2e-9) / 2)


def test_only_large_messages_count() -> None:
    """Links without large messages do not count, and a device without others costs 0."""
    slow = probe("a", "b", 1e-6, 1e-6, sizes=(0, 1 << 10, 1 << 13))
    assert link_cpu_s_per_byte("a", [slow]) == 0.0
    assert link_cpu_s_per_byte("a", [slow, probe("a", "c", 1e-9, 0.0)]) == pytest.approx(1e-9)
    assert link_cpu_s_per_byte("alone", []) == 0.0


def test_a_negative_cost_counts_as_zero() -> None:
    """A negative slope gives 0."""
    assert link_cpu_s_per_byte("a", [probe("a", "b", -1e-11, 0.0)]) == 0.0


def test_probes_without_processor_times_do_not_count() -> None:
    """Probes without processor times do not count."""
    probed = ProbeResult(sizes_bytes=SIZES_BYTES, round_trips_s=((1.0,),) * 4)
    assert link_cpu_s_per_byte("a", [LinkProbe(source="a", target="b", probed=probed)]) == 0.0
