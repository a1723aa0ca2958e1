"""A service whose database is a Postgres server: `--database`, or its variable in the environment."""

import re
import urllib.error
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from fleetune.errors import FleetuneError, Refused, TryAgain
from flows.service.database import check_database
from tests.support.flows.service.client import ServiceClient
from tests.support.flows.service.postgres.cluster import Cluster


def content(path: Path) -> bytes:
    """Of a file; of one that is gone by now, as a lock whose run has ended, nothing."""
    with suppress(FileNotFoundError):
        return path.read_bytes()
    return b""


def test_runs_of_a_service_on_postgres(cluster: Cluster, on_postgres: ServiceClient) -> None:
    """Of two runs at once one ends and one is skipped. After a kill of Postgres the service goes on by itself. The
    password stands in no list of processes and in no file of the store.
    """
    service = on_postgres
    both = [service.start(base="demo", dry_run=True) for _ in range(2)]
    ends = {"DryRun", "Skipped"}
    service.until(lambda: {service.ended(run)["state_name"] for run in both} == ends)

    def answers() -> bool:
        with suppress(urllib.error.HTTPError):
            return {service.flow_run(run)["state_name"] for run in both} == ends
        return False

    cluster.kill()
    with pytest.raises(urllib.error.HTTPError) as failed:
        service.start(base="demo", dry_run=True)
    failed.value.close()
    cluster.start()
    service.until(answers)
    service.idle()
    refused = service.start(base="demo", changes=["training.rouns=3"])
    assert service.ended(refused)["state_name"] == "Refused"
    words = [word for process in psutil.process_iter(["cmdline"]) for word in process.info["cmdline"] or ()]
    assert not any(cluster.password in word for word in words)
    files = [path for path in service.root.rglob("*") if path.is_file()]
    assert files and not [path for path in files if cluster.password.encode() in content(path)]


def test_a_database_is_one_stores(on_postgres: ServiceClient, tmp_path: Path) -> None:
    """The service of another store would end this one's live runs as crashed: it is refused, with this store's name."""
    other = ServiceClient(tmp_path / "other", **on_postgres.environment)
    said = other.command("up", "--port", str(other.free_port()), code=64).stderr
    assert re.search(rf"is that of the store {re.escape(str(on_postgres.root))} on .* of its own", said), said
    assert not other.files.starting()


def test_up_says_what_is_wrong_with_a_database(cluster: Cluster, tmp_path: Path) -> None:
    """Bug: with a wrong password `up` said "Application startup failed", and the reason stood in a log of 250 lines."""
    other = ServiceClient(tmp_path / "runs", PREFECT_SERVER_DATABASE_CONNECTION_URL=cluster.url(password="wrong"))
    said = other.command("up", "--port", str(other.free_port()), code=64).stderr
    assert "does not let user fleet in" in said and "~/.pgpass" in said
    assert not other.files.starting()


def test_each_lack_of_a_database_is_told(cluster: Cluster) -> None:
    """Each refusal tells what is missing and what to do, and no password; of a server that does not answer, an `up` may
    be tried again.
    """
    cluster.ask("CREATE ROLE weak LOGIN PASSWORD 'feeble'", "CREATE DATABASE poor")

    def told(url: str, kind: type[FleetuneError] = Refused) -> str:
        with pytest.raises(kind) as error:
            check_database(url)
        assert "feeble" not in str(error.value) and cluster.password not in str(error.value)
        return str(error.value)

    check_database(cluster.url())
    assert 'CREATE DATABASE "nothing"' in told(cluster.url("nothing"))
    assert 'ALTER DATABASE "poor" OWNER TO "weak"' in told(cluster.url("poor", user="weak", password="feeble"))
    assert "what follows the ?" in told(cluster.url() + "?sslmode=require")
    assert "start it" in told(cluster.url(port=ServiceClient.free_port()), TryAgain)
    for wrong in (cluster.url().replace("+asyncpg", ""), "mysql+aiomysql://ann:feeble@db/x", "nonsense feeble"):
        assert "give a URL such as postgresql+asyncpg://" in told(wrong)
