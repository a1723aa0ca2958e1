"""Fixtures: a fake engine and devices, which leave no thread and no file."""

import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetune.discovery.joining import network
from tests.support.discovery.joining.both_sides import Devices, token_file
from tests.support.discovery.joining.fake_engine import fake_engine


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Assert that no thread and no temporary file outlives a test."""
    tmp_path_factory.getbasetemp()  # pytest's own, which it would make in the private folder
    private = tempfile.mkdtemp(prefix="private-")
    monkeypatch.setattr(tempfile, "tempdir", private)
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before
    os.rmdir(private)  # fails where something is in it


@pytest.fixture(autouse=True)
def a_network_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a separate mDNS service, so that other processes and real hosts are not found."""
    monkeypatch.setattr(network, "SERVICE", f"_ft{os.getpid()}._tcp.local.")


@pytest.fixture
def token(tmp_path: Path) -> Path:
    """File with a token that host and devices share."""
    return token_file(tmp_path)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[str]:
    """Socket of a fake engine."""
    with fake_engine(tmp_path) as place:
        yield place


@pytest.fixture
def devices(engine: str, token: Path) -> Iterator[Devices]:
    """Devices with that engine."""
    made = Devices(engine, token)
    yield made
    made.end()
