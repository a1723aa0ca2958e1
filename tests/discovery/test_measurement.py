"""Comparison of fleets with stored ones, and of emulated links with their request."""

from dataclasses import replace
from typing import Any

import pytest

from fleetune.contracts.fleet import Device, Engine, Fleet, Link, LinkSpec, NetworkSpec
from fleetune.discovery.measurement import link_deviations, link_matches, within_tolerance


def fleet(memory_bytes: int = 100, fingerprint: str = "f", link_cpu_s_per_byte: float = 0.0, **back: Any) -> Fleet:
    """Two devices; `back` changes the link b -> a of 1 ms and 10 MB/s."""
    names = ("a", "b")
    usual = {"latency_s": 1e-3, "bytes_per_s": 1e7}
    return Fleet(
        devices=tuple(
            Device(
                name=n,
                memory_bytes=memory_bytes,
                cores=1,
                fingerprint=fingerprint,
                link_cpu_s_per_byte=link_cpu_s_per_byte,
            )
            for n in names
        ),
        links=(Link(source="a", target="b", **usual), Link(source="b", target="a", **{**usual, **back})),
    )


@pytest.mark.parametrize(
    ("new", "same"),
    [
        (fleet(), True),
        (fleet(bytes_per_s=1.05e7), True),
        (fleet(bytes_per_s=0.95e7), True),
        (fleet(bytes_per_s=1.3e7), False),
        (fleet(bytes_per_s=0.8e7), False),
        (fleet(latency_s=0.2e-3), True),  # below what a busy machine does
        (fleet(latency_s=5e-3), False),  # felt by small messages
        (fleet(bytes_per_s=0.8e7, fit_error=0.2), True),  # the new probe does not know better
        (fleet(fingerprint="g"), False),
        (fleet(memory_bytes=101), False),
        (Fleet(devices=fleet().devices[:1]), False),
    ],
)
def test_within_tolerance(new: Fleet, same: bool) -> None:
    """At 10 %, changed devices make another fleet; links count by the times of two message sizes."""
    assert within_tolerance(fleet(), new, 0.1) is same


def test_fast_links_may_jitter() -> None:
    """600 and 1000 MB/s on one machine are the same link; 100 MB/s is another."""
    quick = fleet(bytes_per_s=1e9)
    assert within_tolerance(quick, fleet(bytes_per_s=6e8), 0.1)
    assert not within_tolerance(quick, fleet(bytes_per_s=1e8), 0.1)


@pytest.mark.parametrize(("old", "new", "same"), [(1e-9, 1.9e-9, True), (2e-8, 2.2e-8, True), (1e-9, 3e-9, False)])
def test_processor_time_per_byte_may_jitter(old: float, new: float, same: bool) -> None:
    """A nanosecond per byte is jitter; a threefold cost is a change."""
    assert within_tolerance(fleet(link_cpu_s_per_byte=old), fleet(link_cpu_s_per_byte=new), 0.1) is same


def test_stated_properties_must_be_equal() -> None:
    """Another image, engine or link request makes another fleet, regardless of the measurements."""
    old = fleet()
    changes: tuple[dict[str, Any], ...] = (
        {"image": "own"},
        {"engines": (Engine(name="shed", address="ssh://shed"),)},
        {"emulated_links": NetworkSpec(mbit_per_s=80)},
    )
    for change in changes:
        assert not within_tolerance(old, replace(old, **change), 0.1)
        assert within_tolerance(replace(old, **change), replace(old, **change), 0.1)


ASKED = NetworkSpec(mbit_per_s=20, latency_s=0.01, pairs=(LinkSpec(source="desk", target="nano", mbit_per_s=100),))


def link(source: str, target: str, mbit_per_s: float, latency_s: float) -> Link:
    """A measured link."""
    return Link(source=source, target=target, bytes_per_s=mbit_per_s * 125_000, latency_s=latency_s)


@pytest.mark.parametrize(
    ("mbit_per_s", "latency_s", "good"),
    [
        (20, 0.01, True),
        (18.1, 0.0119, True),
        (21.9, 0.0081, True),
        (17.9, 0.01, False),
        (22.1, 0.01, False),
        (20, 0.0121, False),
        (20, 0.0079, False),
    ],
)
def test_a_tenth_and_a_millisecond_are_allowed(mbit_per_s: float, latency_s: float, good: bool) -> None:
    """A link matches its request within 10 %, plus 1 ms of latency."""
    asked = ASKED.link("nano", "desk")
    assert link_matches(asked, link("nano", "desk", mbit_per_s, latency_s)) is good


def test_each_direction_is_compared_with_its_own_request() -> None:
    """Only directions that deviate get a sentence, with the requested and measured values."""
    found = [link("nano", "desk", 17.1, 0.01), link("desk", "nano", 99.0, 0.0005)]
    (sentence,) = link_deviations(ASKED, found)
    assert sentence.startswith(
        "link nano -> desk: asked 20 Mbit/s and 10 ms, measured 17.1 Mbit/s and 10 ms; is the machine busy"
    )
    assert link_deviations(ASKED, [found[1]]) == []
