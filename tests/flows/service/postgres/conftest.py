"""Tests with a Postgres server: left out where its programs are missing, and never unnoticed.

With FLEETUNE_POSTGRES_TESTS=required it is an error to leave them out.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.flows.service.client import ServiceClient
from tests.support.flows.service.postgres.cluster import Cluster, programs
from tests.support.left_out import LeftOut, leave_out

HERE = Path(__file__).parent
PROGRAMS = programs()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of this folder where there is no server to start."""
    ours = [item for item in items if HERE in item.path.parents]
    if ours and PROGRAMS is None:
        how = "make postgres, then make test-all"
        said = LeftOut(tests=len(ours), what="Postgres", why="no initdb", how=how)
        leave_out(config, items, ours, said, "FLEETUNE_POSTGRES_TESTS")


@pytest.fixture(scope="package")
def cluster() -> Iterator[Cluster]:
    """A Postgres server with an empty database `prefect`."""
    assert PROGRAMS is not None
    with Cluster(PROGRAMS) as started:
        yield started


@pytest.fixture(scope="package")
def on_postgres(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceClient]:
    """A service whose server has its database there; the environment names it."""
    root = tmp_path_factory.mktemp("postgres") / "runs"
    client = ServiceClient(root, PREFECT_SERVER_DATABASE_CONNECTION_URL=cluster.url())
    client.command("up", "--port", str(client.free_port()))
    yield client
    if client.files.starting():
        client.command("down")
