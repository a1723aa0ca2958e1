"""Addresses and listening sockets of a host or device."""

import ipaddress
import socket
from pathlib import Path

import psutil
import pytest

from fleetune.discovery.joining.device_side import find_local_engine
from fleetune.discovery.joining.network import LOOPBACK, LocalNetwork, listening_sockets, own_addresses
from fleetune.errors import Refused


def test_own_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Own addresses are IPv4, and loopback only if there is no other."""
    found = own_addresses()
    assert found == (LOOPBACK,) or not any(ipaddress.IPv4Address(address).is_loopback for address in found)
    monkeypatch.setattr(psutil, "net_if_stats", dict)
    assert own_addresses() == (LOOPBACK,)


def test_source_address() -> None:
    """The source address is the one that the system sends from if it is listened on, else the first."""
    here = LocalNetwork(addresses=("192.0.2.200", LOOPBACK))
    assert here.source_address(LOOPBACK) == LOOPBACK
    assert LocalNetwork(addresses=("192.0.2.200",)).source_address(LOOPBACK) == "192.0.2.200"
    assert here.source_address("no address") == "192.0.2.200"


def test_listening_ports() -> None:
    """A requested port is used or refused; the usual port falls back to any."""
    with socket.create_server((LOOPBACK, 0)) as other:
        taken = other.getsockname()[1]
        with pytest.raises(
            Refused, match=f"{LOOPBACK}:{taken}: cannot be listened on .*; give another address or port"
        ):
            listening_sockets(LocalNetwork(addresses=(LOOPBACK,), port=taken))
        (given,) = listening_sockets(LocalNetwork(addresses=(LOOPBACK,)), default_port=taken)
        with given:
            assert given.getsockname()[1] != taken
    with pytest.raises(Refused, match="192.0.2.200:any: cannot be listened on"):
        listening_sockets(LocalNetwork(addresses=("192.0.2.200",)))
    both = listening_sockets(LocalNetwork(addresses=(LOOPBACK, "127.0.0.2")))
    assert len({each.getsockname()[1] for each in both}) == 1
    for each in both:
        each.close()


def test_find_local_engine(engine: str, tmp_path: Path) -> None:
    """The named engine is used, else that of the environment; engines of other machines are refused."""
    place = str(Path(engine).resolve())
    assert find_local_engine(f"unix://{place}", {"DOCKER_HOST": "unix:///nothing"}).version == "9.9"
    assert find_local_engine(None, {"DOCKER_HOST": f"unix://{place}"}).socket == place
    with pytest.raises(Refused, match="no engine answers at .*none .*; run make engine, or name yours"):
        find_local_engine(f"unix://{tmp_path}/none", {})
    with pytest.raises(Refused, match="DOCKER_HOST names another machine"):
        find_local_engine(None, {"DOCKER_HOST": "tcp://192.0.2.1:2376"})
    with pytest.raises(Refused, match="write unix:///PATH"):
        find_local_engine("tcp://192.0.2.1:2376", {})
