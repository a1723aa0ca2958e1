"""Engines of a fleet: which addresses are taken."""

import pytest

from fleetune.contracts.fleet import Engine
from fleetune.errors import Refused


@pytest.mark.parametrize(
    ("address", "reach"),
    [
        ("tcp://[2001:db8::7]:2376", None),
        ("ssh://ann@[fe80::1%25eth0]", None),
        ("tcp://attic:2376", "2001:db8::7"),
        ("tcp://attic:2376", "192.168.0.7:2376"),
    ],
)
def test_a_machine_that_others_would_not_reach_is_refused(address: str, reach: str | None) -> None:
    """Links are IPv4: an IPv6 address, which joined with a port would name another machine or none, is refused when the
    config is read, and so is a port where none belongs."""
    tls = "/tmp" if address.startswith("tcp") else None
    with pytest.raises(Refused, match=r"^engine attic: .* is an IPv6 address.*give a reach"):
        Engine(name="attic", address=address, tls=tls, reach=reach)


def test_a_password_in_an_address_is_refused() -> None:
    """An address stands in records and messages: it holds no password, and the refusal does not say it either."""
    for address in (
        "ssh://ann:hush@attic",
        "tcp://ann:hush@attic:2376",
        "ssh://ann:h/ush@attic",
        "tcp://ann:[hush@a:1",
    ):
        with pytest.raises(Refused, match="its address holds a password") as refused:
            Engine(name="attic", address=address, tls="/tmp" if address.startswith("tcp") else None)
        assert "ush" not in str(refused.value)


def test_an_engine_at_an_ipv6_address_whose_machine_has_another() -> None:
    """The engine itself may be at an IPv6 address where other devices reach its machine by a name or by IPv4."""
    engine = Engine(name="attic", address="tcp://[2001:db8::7]:2376", tls="/tmp", reach="192.168.0.7")
    assert engine.host == "192.168.0.7"
    assert Engine(name="attic", address="tcp://192.168.0.7:2376", tls="/tmp").host == "192.168.0.7"
