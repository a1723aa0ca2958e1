"""Transfers: every item from the source with which all devices have theirs earliest."""

import random
from collections import defaultdict
from collections.abc import Iterable
from itertools import product

from fleetune.recovery.transfers import Item, Links, Missing, Transfer, assign


def drawn(seed: int) -> tuple[list[Missing], dict[Item, int], Links]:
    """A small instance: up to 6 items on up to 5 devices with links of very different speeds."""
    draw = random.Random(seed)
    devices = "abcde"[: draw.randint(2, 5)]
    links = {(a, b): draw.choice([1.0, 2.0, 5.0, 10.0, 100.0]) for a in devices for b in devices if a != b}
    sizes = {Item("main", str(number)): draw.randint(0, 20) for number in range(draw.randint(1, 6))}
    missing = []
    for item in sizes:
        holders = sorted(draw.sample(devices, draw.randint(1, len(devices) - 1)))
        missing.append(Missing(draw.choice([d for d in devices if d not in holders]), item, tuple(holders)))
    return missing, sizes, links


def port_seconds(transfers: Iterable[Transfer], links: Links) -> dict[tuple[str, str], float]:
    """How long each port is busy: (device, `out` or `in`) -> seconds."""
    busy_s = defaultdict[tuple[str, str], float](float)
    for each in transfers:
        seconds = each.bytes / links[each.source, each.target]
        busy_s[each.source, "out"] += seconds
        busy_s[each.target, "in"] += seconds
    return dict(busy_s)


def least_seconds(missing: list[Missing], sizes: dict[Item, int], links: Links) -> float:
    """The busiest port's seconds with the best choice of sources, of all choices."""
    found = []
    for picked in product(*[each.sources for each in missing]):
        busy_s = defaultdict[tuple[str, int], float](float)
        for each, source in zip(missing, picked, strict=True):
            seconds = sizes[each.item] / links[source, each.target]
            busy_s[source, 0] += seconds
            busy_s[each.target, 1] += seconds
        found.append(max(busy_s.values()))
    return min(found)


def test_the_busiest_port_is_nearly_always_as_idle_as_it_can_be() -> None:
    """Against all choices of sources, on 400 instances: the best in 99 of 100, and never 1.5 times the best."""
    ratios = []
    for seed in range(400):
        missing, sizes, links = drawn(seed)
        transfers = assign(missing, sizes, links)
        moved = [(each.target, Item(each.lane, name)) for each in transfers for name in each.names]
        assert sorted(moved) == sorted((each.target, each.item) for each in missing)
        busy_s, least_s = max(port_seconds(transfers, links).values()), least_seconds(missing, sizes, links)
        ratios.append(busy_s / least_s if least_s else 1.0 + busy_s)
    assert sum(ratio < 1 + 1e-9 for ratio in ratios) >= 0.99 * len(ratios)
    assert max(ratios) < 1.5


def test_two_holders_share_what_a_third_device_lacks_by_the_speed_of_their_links() -> None:
    """Ten equal items, links of 3 and of 1 byte/s: no port is busy for longer than with the fast link alone, and the
    slow one sends nothing, as the receiver's own port is what all wait for."""
    items = [Item("main", f"{number:02}") for number in range(10)]
    missing = [Missing("c", item, ("a", "b")) for item in items]
    transfers = assign(missing, dict.fromkeys(items, 3), {("a", "c"): 3.0, ("b", "c"): 1.0})
    assert [(each.source, each.bytes) for each in transfers] == [("a", 30)]


def test_two_receivers_are_served_by_two_holders() -> None:
    """Two devices lack the same ten items that two others hold: each holder sends half of it all."""
    items = [Item("main", f"{number:02}") for number in range(10)]
    links = {(source, target): 1.0 for source in "ab" for target in "cd"}
    missing = [Missing(target, item, ("a", "b")) for target in "cd" for item in items]
    transfers = assign(missing, dict.fromkeys(items, 3), links)
    assert set(port_seconds(transfers, links).values()) == {30.0}


def test_sixteen_devices_and_a_thousand_tensors_are_assigned_at_once() -> None:
    """Of a fleet of 16 devices with 1000 tensors on three holders each, no port is 5 % busier than the mean.

    The choice is made in one pass with few changes, so that it takes milliseconds and not minutes.
    """
    draw = random.Random(3)
    devices = [f"d{number:02}" for number in range(16)]
    links = {(a, b): 1e6 for a in devices for b in devices if a != b}
    items = [Item("main", str(number)) for number in range(1000)]
    missing = []
    for number, item in enumerate(items):
        target = devices[number % 16]
        missing.append(Missing(target, item, tuple(draw.sample([d for d in devices if d != target], 3))))
    sizes = {item: draw.randint(1, 4_000_000) for item in items}
    busy_s = port_seconds(assign(missing, sizes, links), links)
    received = [seconds for (_, way), seconds in busy_s.items() if way == "in"]
    assert max(busy_s.values()) <= 1.05 * max(received)
