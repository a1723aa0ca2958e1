"""Who reaches a service: its port, web pages and users of the same machine, and what its settings tell them."""

import asyncio
import errno
import os
import socket
import sys
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import make_url

from fleetune import filesystem
from fleetune.errors import Refused, TryAgain
from flows import prefect_server
from flows.prefect_server import DATABASE, HOST
from flows.service import control
from flows.service.http_server import OwnPagesOnly
from flows.service.keeper import MOST_LOG_BYTES, Keeper, bound, ended_at_start, name_of, reserve
from flows.service_files import HOME, ServiceFiles, ServiceRecord, make_home
from tests.support.flows.service.client import ServiceClient

RUNNING = ServiceRecord(
    address="http://127.0.0.1:4950", root="runs", keeper=1, started="", authenticated=False, version="1"
)


def test_two_services_have_no_port_together() -> None:
    """Bug: SO_REUSEPORT let a second store's service have the port of the first, and both said they were ready. The
    port is the first one's and its server's alone, also while the server is away.
    """
    port = ServiceClient.free_port()
    with reserve(port):
        with pytest.raises(Refused, match=rf"port {port}: another program has it; give another with --port"):
            reserve(port)
        with socket.create_server((HOST, port), reuse_port=True) as listener:
            with pytest.raises(Refused, match=str(port)):
                reserve(port)
            with socket.create_connection((HOST, port)), listener.accept()[0]:
                pass
        with pytest.raises(Refused, match=str(port)):
            reserve(port)
    with reserve(port):
        """A connection that has just ended holds nothing."""


def test_settings_of_a_running_service_are_not_ignored(tmp_path: Path) -> None:
    """`up` with another port, password or database than the running service has says so, and how to change it; no
    password of a database is told.
    """
    files = ServiceFiles(tmp_path)
    files.folder.mkdir(parents=True)
    url = "postgresql+asyncpg://ann:hush@db/prefect"
    on_postgres = replace(RUNNING, database=files.mark(url))

    def refusal(running: ServiceRecord = RUNNING, **asked: Any) -> str:
        with pytest.raises(
            Refused, match=r".* runs already.*; to change it: fleetune down, then fleetune up"
        ) as refused:
            control.refuse_changes(files, running, control.ServiceOptions(**asked))
        return str(refused.value)

    for same in (control.ServiceOptions(), control.ServiceOptions(port=4950, password=False)):
        control.refuse_changes(files, RUNNING, same)
        control.refuse_changes(files, on_postgres, replace(same, database=url))
    assert refusal(port=4951).startswith("--port 4951: ") and "http://127.0.0.1:4950" in refusal(port=4951)
    assert refusal(password=True).startswith("--password: ") and "without one" in refusal(password=True)
    for told in (refusal(database=url), refusal(on_postgres, database="sqlite+aiosqlite:////srv/x.db")):
        assert told.startswith("--database: ") and "another database" in told
        assert "hush" not in told + on_postgres.database


def test_no_password_in_a_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Command lines are everybody's to read: a password in `--database` is refused before anything starts, in every
    place of a URL; without one, and in the environment, it is taken.
    """
    for url in (
        "postgresql+asyncpg://ann:hush@db/prefect",
        "postgresql+asyncpg://ann:hu/sh?#hush@db/prefect",
        "postgresql+asyncpg://ann@db/prefect?password=hush",
        "postgresql+asyncpg://ann@db/prefect?sslpassword=hush",
    ):
        assert "hush" in str({make_url(url).password, *make_url(url).query.values()}), "as SQLAlchemy reads it"
        assert "hu" not in name_of(url)
        with pytest.raises(Refused, match=r"--database: .* list of processes; .*~/\.pgpass") as refused:
            control.refuse_password(url)
        assert "hush" not in str(refused.value)
        monkeypatch.setenv(DATABASE, url)
        assert control.ServiceOptions().given_database() == url
    for harmless in (None, "postgresql+asyncpg://ann@db/prefect", "sqlite+aiosqlite:////srv/x.db"):
        control.refuse_password(harmless)
    assert name_of("postgresql+asyncpg://ann:hush@db:5433/prefect?ssl=require") == "postgresql://db:5433/prefect"


def test_the_reason_of_a_server_that_did_not_start() -> None:
    """Bug: the reason was uvicorn's last line, "Application startup failed". It is the error before that line; a server
    that ends with a sentence of its own is quoted.
    """
    tail = "Traceback\n  File x\nOSError: no room\n\nERROR:    Application startup failed. Exiting.\n"
    assert str(ended_at_start(3, tail)) == "Prefect's server did not start (OSError: no room)"
    assert "no reason given" in str(ended_at_start(1, ""))
    for kind in (Refused, TryAgain):
        own = ended_at_start(kind.exit_code, "noise\ndatabase x: there is none\n")
        assert type(own) is kind and str(own) == "database x: there is none"


def test_a_full_disk_by_whatever_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a server that a full disk had ended at its start was told by the last line of its traceback."""
    keeper = Keeper(str(tmp_path), 1, True, lambda _: None)
    for refused in (Refused("x"), TryAgain("y")):
        assert keeper.known(refused) is refused
    assert keeper.known(ValueError("x")) is None
    assert "has no room for this" in str(keeper.known(OSError(errno.ENOSPC, "", str(tmp_path / "x"))))
    monkeypatch.setattr(filesystem, "FULL_BYTES", 1 << 70)
    full = keeper.known(ended_at_start(1, 'File "x", line 959'))
    assert isinstance(full, TryAgain) and str(full).startswith(f"the disk of {tmp_path} ")


def test_logs_are_bounded_while_they_are_written(tmp_path: Path) -> None:
    """A server whose database is away writes megabytes a minute: its log is set aside while it runs, and goes on."""
    log = tmp_path / "server.log"
    with log.open("ab") as child:
        child.write(bytes(MOST_LOG_BYTES + 1))
        child.flush()
        bound(log)
        child.write(b"after")
    assert log.read_bytes() == b"after" and (tmp_path / "server.log.1").stat().st_size == MOST_LOG_BYTES + 1
    bound(log)
    assert log.read_bytes() == b"after"


def test_logs_are_set_aside_through_no_link(tmp_path: Path) -> None:
    """Bug: a link in the place of a log, or of the one set aside, had a file of the user's emptied or written."""
    log, other = tmp_path / "server.log", tmp_path / "other"
    other.write_bytes(long := bytes(MOST_LOG_BYTES + 1))
    log.symlink_to(other)
    bound(log)
    assert other.read_bytes() == long
    log.unlink()
    log.write_bytes(b"x" + long)
    log.with_suffix(".log.1").symlink_to(other)
    bound(log)
    assert other.read_bytes() == long and log.read_bytes() == b""


def test_the_log_of_a_service_is_written_through_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: in a store that somebody handed over, a link from keeper.log led the keeper's lines into any file."""
    files, other = ServiceFiles(tmp_path), tmp_path / "profile"
    make_home(files.home)
    other.write_text("mine")
    files.folder.mkdir()
    (files.folder / "keeper.log").symlink_to(other)
    monkeypatch.setattr("subprocess.Popen", None)
    with pytest.raises(Refused, match=r"keeper.log: it is a link, .*; delete it"):
        control.up(tmp_path, str(tmp_path), control.ServiceOptions(), print)


def test_a_full_disk_loses_the_old_lines_of_a_log_and_not_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no room to set a log aside, it gives its own room back."""

    def full(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", full)
    log = tmp_path / "server.log"
    log.write_bytes(bytes(MOST_LOG_BYTES + 1))
    bound(log)
    assert log.read_bytes() == b""


def test_pages_of_others_are_not_answered(service: ServiceClient) -> None:
    """Bug: Prefect answered any web page in any browser of this machine, which could start runs and change the command
    of the worker. Pages of another address, also on this machine, and other names of this address are refused; our own
    pages, programs, and a browser that comes through a tunnel from another port are answered.
    """
    own = service.record.address.removeprefix("http://")
    port = own.rpartition(":")[2]
    for host, origin, answer in (
        (own, "", 200),
        (own, f"http://{own}", 200),
        ("localhost:9999", "http://localhost:9999", 200),
        (f"[::1]:{port}", "", 200),
        (own, "http://evil.example", 403),
        (own, "http://127.0.0.1:8000", 403),
        (own, "null", 403),
        ("evil.example", "", 403),
        (f"127.0.0.1.evil.example:{port}", f"http://127.0.0.1.evil.example:{port}", 403),
        ("[", "", 403),
    ):
        request = service.request("POST", "/flows/count", {})
        request.add_header("Host", host)
        if origin:
            request.add_header("Origin", origin)
        try:
            with urllib.request.urlopen(request) as reply:
                status = reply.status
        except urllib.error.HTTPError as error:
            status = error.code
            error.close()
        assert status == answer, (host, origin)


def test_a_websocket_of_another_page_is_closed() -> None:
    """Events of runs are told by websockets, which browsers open to every address."""
    told: list[Any] = []

    async def send(message: Any) -> None:
        told.append(message)

    async def server(scope: Any, receive: Any, answer: Any) -> None:
        told.append(scope["type"])

    for origin in (b"http://evil.example", b"http://127.0.0.1:4200"):
        scope = {"type": "websocket", "headers": [(b"host", b"127.0.0.1:4200"), (b"origin", origin)]}
        asyncio.run(OwnPagesOnly(server)(scope, send, send))
    asyncio.run(OwnPagesOnly(server)({"type": "lifespan"}, send, send))
    assert [one if isinstance(one, str) else one["type"] for one in told] == [
        "websocket.close",
        "websocket",
        "lifespan",
    ]


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a shared folder somebody else can make the store's folder first, and would read the password."""
    monkeypatch.setattr("os.getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(Refused, match="belongs to user .*, or give another --root"):
        control.up(tmp_path, "runs", control.ServiceOptions(), print)


def of_others(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a path belong to another user. `chown` needs root, and some sandboxes carry it out as nothing."""
    real = os.stat

    def stat(path: object, **options: bool) -> os.stat_result:
        found = real(path, **options)  # type: ignore[arg-type]
        if path not in (place, str(place)):
            return found
        return os.stat_result([*found[:4], os.getuid() + 1, *found[5:]])

    monkeypatch.setattr("os.stat", stat)


@pytest.mark.parametrize("planted", ["prefect", "prefect/prefect.db", "prefect/service/secret"])
def test_what_another_user_has_planted_in_a_store_is_refused(
    tmp_path: Path, planted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: a run in a folder of somebody else took the database that it found in `./runs`, which names the programs
    that are run. What another user has made is refused by name, be it a link, before a run or a service starts."""
    place, home = tmp_path / "runs" / planted, tmp_path / "runs" / HOME
    place.parent.mkdir(parents=True)
    place.symlink_to("/etc" if place == home else "/etc/passwd")
    of_others(place, monkeypatch)
    monkeypatch.delitem(sys.modules, "prefect", raising=False)  # else it counts as configured
    for begin in (make_home, prefect_server.check_configured_server):
        with pytest.raises(Refused, match=f"{place}: it belongs to user .*, or give another --root"):
            begin(home)


def test_a_store_that_everybody_can_write_is_refused(tmp_path: Path) -> None:
    """Others could put another database there. What its group may write has been shared on purpose."""
    store = tmp_path / "runs"
    store.mkdir()
    store.chmod(0o775)
    make_home(store / HOME)
    store.chmod(0o777)
    with pytest.raises(Refused, match=f"{store}: every user of this machine can write it; .*chmod o-w.* --root"):
        make_home(store / HOME)
