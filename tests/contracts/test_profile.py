"""Subnets of a profile, which plans can gate."""

import json
from typing import Any

import pytest

from fleetune.contracts import json_io
from fleetune.contracts.profile import Profile
from fleetune.contracts.subnet import Subnet, SubnetPart
from fleetune.errors import Refused
from tests.support.clock import fleets


def subnet(name: str = "block.0#0", **changes: Any) -> dict[str, Any]:
    """A subnet as plain JSON values."""
    plain = {
        "name": name,
        "parts": [{"unit": "u0", "share": 0.5}],
        "weight_magnitude": 2.0,
        "gradient_magnitude": 1.0,
        "fisher": [0.5, 0.25],
    }
    return {**plain, **changes}


def profile_with(*subnets: dict[str, Any]) -> str:
    """The default profile with these subnets, as JSON."""
    return json.dumps({**json_io.dump(fleets.PROFILE), "subnets": list(subnets)})


def test_a_profile_without_scores_does_not_speak_of_subnets() -> None:
    """Profiles of older versions read and write unchanged."""
    assert "subnets" not in json_io.text(fleets.PROFILE)
    assert json_io.parse(Profile, profile_with(), "profile") == fleets.PROFILE


def test_subnets_survive_json() -> None:
    """Two heads that share a unit evenly survive JSON."""
    read = json_io.parse(Profile, profile_with(subnet(), subnet("block.0#1")), "profile")
    assert read.subnets[1] == Subnet(
        name="block.0#1",
        parts=(SubnetPart(unit="u0", share=0.5),),
        weight_magnitude=2.0,
        gradient_magnitude=1.0,
        fisher=(0.5, 0.25),
    )
    assert json_io.parse(Profile, json_io.text(read), "profile") == read


@pytest.mark.parametrize(
    ("subnets", "words"),
    [
        ([subnet(), subnet()], "profile: subnet 'block.0#0' is used twice"),
        ([subnet(parts=[])], "subnet block.0#0: it needs a part of at least one unit"),
        ([subnet(parts=[{"unit": "u0", "share": 0.1}] * 2)], "subnet block.0#0: unit 'u0' is used twice"),
        ([subnet(parts=[{"unit": "u9", "share": 0.1}])], "a part of unit u9, which the model does not have"),
        ([subnet(parts=[{"unit": "u0", "share": 0}])], "part of unit u0: share must be a number above 0"),
        ([subnet(parts=[{"unit": "u0", "share": 1.01}])], "part of unit u0: share 1.01 is above 1"),
        ([subnet(str(k)) for k in range(3)], "subnets have 1.500000 of unit u0; together at most all of it"),
        ([subnet(), subnet("other", fisher=[1.0])], "every subnet must be scored on the same micro-batches"),
        ([subnet(weight_magnitude=-1)], "subnet block.0#0: weight_magnitude must be a number of at least 0"),
        ([subnet(fisher=[float("1e999")])], "Infinity is not a finite number"),
        ([subnet(heads=3)], "unknown key; allowed are name, parts, weight_magnitude, gradient_magnitude, fisher"),
    ],
)
def test_subnets_that_cannot_be_are_refused_by_name(subnets: list[dict[str, Any]], words: str) -> None:
    """Each invalid subnet is refused with its own sentence."""
    with pytest.raises(Refused, match=words):
        json_io.parse(Profile, profile_with(*subnets), "profile.json")


def test_thirds_of_a_unit_are_all_of_it() -> None:
    """Rounding errors of shares are tolerated."""
    thirds = [subnet(f"block.0#{k}", parts=[{"unit": "u0", "share": 1 / 3}]) for k in range(3)]
    assert len(json_io.parse(Profile, profile_with(*thirds), "profile").subnets) == 3
