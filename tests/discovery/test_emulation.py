"""NetworkSpec that are emulated, compared with what was asked."""

import pytest

from fleetune.contracts.fleet import Link
from fleetune.contracts.link_spec import LinkSpec, NetworkSpec
from fleetune.discovery.tolerance import link_deviations, link_matches

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
    """Rate within 10 %; latency within 10 % and the millisecond of the transport itself."""
    asked = ASKED.link("nano", "desk")
    assert link_matches(asked, link("nano", "desk", mbit_per_s, latency_s)) is good


def test_each_direction_is_compared_with_its_own_wish() -> None:
    """The sentence has both numbers of both, for the directions that are off and no others."""
    found = [link("nano", "desk", 17.1, 0.01), link("desk", "nano", 99.0, 0.0005)]
    (sentence,) = link_deviations(ASKED, found)
    assert sentence.startswith(
        "link nano -> desk: asked 20 Mbit/s and 10 ms, measured 17.1 Mbit/s and 10 ms; is the machine busy"
    )
    assert link_deviations(ASKED, [found[1]]) == []
