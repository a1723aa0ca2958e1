"""A running service, shared by the tests of this folder: its start takes many seconds."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.flows.service.client import ServiceClient


@pytest.fixture(scope="package")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceClient]:
    """A service of an empty store, started and stopped by the commands that people use."""
    client = ServiceClient(tmp_path_factory.mktemp("service") / "runs")
    client.command("up", "--port", str(client.free_port()))
    yield client
    if client.files.starting():
        client.command("down")


@pytest.fixture(autouse=True)
def no_prefect_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of the machine that runs the tests reach no service."""
    for name in [name for name in os.environ if name.startswith("PREFECT_")]:
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def no_run_of_another_test(request: pytest.FixtureRequest) -> None:
    """A run that a failed test has left ends before the next test starts one, which else would be Skipped."""
    if "service" in request.fixturenames:
        client = request.getfixturevalue("service")
        if client.files.running() is not None:
            client.idle()


@pytest.fixture
def root(service: ServiceClient) -> Path:
    """Root of the service's store."""
    return service.root
