"""Tests with a Postgres server: left out in one line where its programs are missing, and never unnoticed.

With FLEETUNE_POSTGRES_TESTS=required it is an error to leave them out.
"""

import os
from collections.abc import Iterator

import pytest

from tests.support.flows.service.client import ServiceClient
from tests.support.flows.service.postgres.cluster import Cluster, programs

PROGRAMS = programs()
LACK = "the Postgres tests are left out (no initdb): make postgres, then make test, includes them"
IS_AN_ERROR = PROGRAMS is None and os.environ.get("FLEETUNE_POSTGRES_TESTS") == "required"
collect_ignore_glob = ["test_*.py"] if PROGRAMS is None else []


def pytest_collection_modifyitems() -> None:
    """An error where they must run and cannot."""
    if IS_AN_ERROR:
        raise pytest.UsageError(f"FLEETUNE_POSTGRES_TESTS=required, but {LACK}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """The same, where other processes have collected."""
    if IS_AN_ERROR:
        session.exitstatus = pytest.ExitCode.USAGE_ERROR


def pytest_unconfigure(config: pytest.Config) -> None:
    """The last line."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if PROGRAMS is None and reporter is not None:
        reporter.write_line(LACK)


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
    client.command("up", "--port", str(client.free_port()), "--no-password")
    yield client
    if client.files.starting():
        client.command("down")
