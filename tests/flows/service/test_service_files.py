"""Files of a service that a crash, a lost power or a reboot leaves."""

import asyncio
import datetime
import importlib
import os
import stat
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psutil
import pytest
from prefect.server.concurrency.lease_storage import ConcurrencyLimitLeaseMetadata
from prefect.types._concurrency import ConcurrencyLeaseHolder
from prefect.workers.process import ProcessWorker

from fleetune.errors import Refused, TryAgain
from fleetune.launching import Command
from fleetune.linux import process_identity
from fleetune.store.lock import is_held
from flows.service import control
from flows.service import keeper as keeping
from flows.service.environment import IN_FOLDER, RUNS_ONLY, SETTINGS, WORKER_LIVES
from flows.service.http_server import TellsWorker
from flows.service.keeper import Keeper
from flows.service.worker import Worker
from flows.service_files import ServiceFiles, ServiceRecord, hold
from tests.support.flows.service.client import ServiceClient
from tests.support.launching.freezing import HASTY, WORDS, Freezing


def test_a_process_id_that_was_given_again_is_no_keeper(tmp_path: Path) -> None:
    """Bug: while a service started after a crash, the record of the dead one was believed: `down` then terminated
    whatever program had its process id, after a reboot any. A record counts only for the very process that wrote it;
    one that names none may have come with the store, as may a lock that nobody can open.
    """
    files = ServiceFiles(tmp_path)
    own = process_identity(os.getpid())
    record = ServiceRecord(
        address="http://127.0.0.1:4950",
        root="runs",
        keeper=os.getpid(),
        started="",
        authenticated=False,
        version="1",
        identity=own,
    )
    with files.lock():  # the next keeper starts
        files.write(record)
        assert files.running() == record
        before, _, ticks = own.rpartition("/")
        for other in ("", f"{before}/{int(ticks) + 1}", f"another-boot/{own.partition('/')[2]}"):
            files.write(replace(record, identity=other))
            assert files.running() is None and files.starting()
            with pytest.raises(TryAgain, match="is starting or ending"):
                control.down(tmp_path, "runs")  # it would end this test


def test_a_password_is_never_empty(tmp_path: Path) -> None:
    """Bug: a power lost while the password was written left an empty file, and the server then asked for none that
    somebody else does not know. A new one is made; it stays, and nobody else may read it.
    """
    files = ServiceFiles(tmp_path)
    files.folder.mkdir(parents=True)
    secret = files.folder / "secret"
    secret.touch()
    made = files.secret()
    assert len(made) >= 24 and files.secret() == made and secret.read_text() == made
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600 and [secret] == list(files.folder.iterdir())


def test_looking_at_a_lock_does_not_hold_it(tmp_path: Path) -> None:
    """Bug: of two commands that looked at the same moment whether a service runs, one took the other for it."""
    path = tmp_path / "lock"
    path.touch()
    together, held = threading.Barrier(4), list[bool]()

    def look() -> None:
        together.wait()
        held.extend(is_held(path) for _ in range(500))

    lookers = [threading.Thread(target=look) for _ in range(4)]
    for looker in lookers:
        looker.start()
    for looker in lookers:
        looker.join()
    assert len(held) == 2000 and not any(held)


def test_a_suspended_run_keeps_its_slot(tmp_path: Path) -> None:
    """Bug: a run that was suspended for more than five minutes, or whose machine slept, lost its lease: another run
    trained beside it when it woke, and Prefect ended it. Its lease is nobody else's while its process lives, however
    late it is, and can be renewed; that of a process that is gone is taken back, and so are leases of other things.
    Leases of a deployment's slot name no holder.
    """
    files = ServiceFiles(tmp_path)
    module = importlib.import_module(SETTINGS["PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE"])
    leases = module.ConcurrencyLeaseStorage(files.home / "concurrency_leases")
    late = datetime.timedelta(hours=-1)

    async def lease(kind: Any = "", named: UUID | None = None) -> UUID:
        holder = ConcurrencyLeaseHolder(type=kind, id=named) if named else None
        metadata = ConcurrencyLimitLeaseMetadata(slots=1, holder=holder)
        made = await leases.create_lease([uuid4()], late, metadata)
        return UUID(str(made.id))

    async def play() -> None:
        suspended, dead = uuid4(), uuid4()
        held, gone = await lease("flow_run", suspended), await lease("flow_run", dead)
        slot, other = await lease(), await lease("task_run", suspended)
        with hold(tmp_path, str(suspended)):
            assert set(await leases.read_expired_lease_ids()) == {gone, other}
            assert await leases.renew_lease(slot, datetime.timedelta(minutes=5))
            assert await leases.read_active_lease_ids() == [slot]
            assert await leases.renew_lease(slot, late)
        assert set(await leases.read_expired_lease_ids()) == {held, gone, slot, other}

    asyncio.run(play())


def test_the_worker_hears_of_a_submission_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that asked every second made whoever submits wait for half of one; it asks every other second, but at
    once after a request that may submit a run, and never once it ends.
    """
    files, asked, now = ServiceFiles(tmp_path), list[float](), [100.0]
    files.folder.mkdir(parents=True)
    monkeypatch.setenv("PREFECT_HOME", str(files.home))

    async def asks(worker: Any) -> list[Any]:
        asked.append(now[0])
        return []

    async def answers(scope: Any, receive: Any, send: Any) -> None:
        await send(scope["path"])

    async def sends(path: Any) -> None:
        told.append(path)

    monkeypatch.setattr(ProcessWorker, "get_and_submit_flow_runs", asks)
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    told = list[str]()
    worker = Worker.__new__(Worker)
    server = TellsWorker(answers, files.submitted)

    async def submit(method: str, path: str) -> None:
        await server({"type": "http", "method": method, "path": f"/api/{path}"}, None, sends)

    async def play() -> None:
        for step in range(48):  # three seconds
            if step == 24:
                await submit("GET", "deployments/1/create_flow_run")
                await submit("POST", "flow_runs/filter")
            if step == 40:
                await submit("POST", "deployments/1/create_flow_run")
            await worker.get_and_submit_flow_runs()
            now[0] += 0.0625
        worker.ends, now[0] = True, now[0] + 10
        await worker.get_and_submit_flow_runs()

    asyncio.run(play())
    assert asked == [100, 102, 102.5] and len(told) == 3


class Hanging:
    """A job that ends when it is stopped, with this code."""

    def __init__(self, code: int = -9) -> None:
        self.code = code
        self.stopped = threading.Event()

    def poll(self) -> int | None:
        """Its exit code."""
        return self.code if self.stopped.is_set() else None

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Its exit code, after its end."""
        self.stopped.wait(timeout_s)
        return self.poll()

    def lines(self) -> Iterator[str]:
        """None, until it ends."""
        self.stopped.wait(30)
        return iter(())

    def stop(self, grace_s: float = 0.0) -> None:
        """End it."""
        self.stopped.set()

    def tail(self, lines: int) -> str:
        """Its log."""
        return "all connection attempts failed"


class HangingJobs:
    """A launcher whose jobs hang."""

    def start(self, command: Command) -> Any:
        """A job."""
        return Hanging()


class NoJobs:
    """A launcher that starts none."""

    def start(self, command: Command) -> Any:
        """Fail."""
        raise TryAgain("no word")


def test_a_registration_ends_with_its_server(tmp_path: Path) -> None:
    """Bug: a server that was killed while deployments were registered stayed away for minutes: the registration waited
    for it, and the keeper, who would have started it, for the registration. `down` waited likewise.
    """
    for ends in ("server", "service"):
        keeper, server = Keeper(str(tmp_path), 4950, True, print, HangingJobs()), Hanging()
        keeper.jobs["server"] = server  # type: ignore[assignment]
        end = server.stop if ends == "server" else keeper.stop
        later = threading.Timer(0.1, end)
        later.start()
        with pytest.raises(TryAgain, match="could not be registered"):
            keeper.register()
        later.join()
        assert "registration" not in keeper.jobs


def test_a_registration_that_freezes_is_ended(tmp_path: Path) -> None:
    """Bug: the keeper, or a second `up`, waited for it for ever."""
    keeper = Keeper(str(tmp_path), 4950, "no", print, Freezing())
    keeper.jobs["server"] = Hanging()  # type: ignore[assignment]
    with pytest.raises(TryAgain, match=f"could not be registered .{WORDS}"):
        keeper.register()


@pytest.mark.parametrize("ends", ["run", "worker"])
def test_only_what_was_started_again_is_registered_anew(
    ends: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: a run that ended without a word, or whose tasks' last words came late, made the keeper register the
    schedules and automations of its own folder, in the place of those of a later `up` and of changes in the UI.
    """
    told = list[tuple[str, ...]]()

    class Jobs:
        def start(self, command: Command) -> Any:
            job = Hanging(0)
            if command.module == "flows.service.registration":
                told.append(command.arguments)
                keeper.stop()
                job.stop()
            return job

    keeper, files = Keeper(str(tmp_path), 4950, True, print, Jobs()), ServiceFiles(tmp_path)
    folder = tmp_path / "later"
    folder.mkdir()
    files.folder.mkdir(parents=True)
    (files.folder / "folder").write_text(str(folder))
    keeper.jobs |= {"server": Hanging(), "worker": Hanging()}  # type: ignore[dict-item]
    if ends == "worker":
        keeper.jobs["worker"].stop(0.0)
    monkeypatch.setattr(keeping, "LOOK_S", 0.0)
    keeper.watch(lambda: ["one"] if ends == "run" else [], lambda: None)
    assert told == [(WORKER_LIVES, RUNS_ONLY) if ends == "run" else (IN_FOLDER, str(folder))]


def test_a_service_that_freezes_while_it_starts_is_given_up(tmp_path: Path) -> None:
    """Bug: `up` waited for ever for a keeper that was stopped. It is killed, and its server with it."""

    def freeze(_: str) -> None:
        (keeper,) = [each for each in psutil.Process().children() if "flows.service.keeper" in each.cmdline()]
        found.extend([keeper, *keeper.children()])
        keeper.suspend()

    found: list[psutil.Process] = []
    with pytest.raises(TryAgain, match="ended while it started"):
        control.up(tmp_path, str(tmp_path), control.ServiceOptions(port=ServiceClient.free_port()), freeze, HASTY)
    assert found and not psutil.wait_procs(found, timeout=20.0)[1]


def test_marks_are_made_through_no_link(tmp_path: Path) -> None:
    """Bug: a link in the place of a mark that is touched made an empty file wherever it led; so did that of a lock."""
    files = ServiceFiles(tmp_path)
    files.folder.mkdir(parents=True)
    marks = (files.submitted, files.going_down, files.record)
    for mark in marks:
        mark.symlink_to(tmp_path / "made")
    with pytest.raises(TryAgain, match="no word"):
        Keeper(str(tmp_path), ServiceClient.free_port(), True, print, NoJobs()).keep()
    assert not any(mark.is_symlink() for mark in marks)
    files.flow_run_lock("one").parent.mkdir()
    files.flow_run_lock("one").symlink_to(tmp_path / "made")
    with pytest.raises(Refused, match=r"one.lock: it is a link, .*; delete it"):
        hold(tmp_path, "one")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("password", [True, False])
def test_keys_end_before_a_server_without_a_password_starts(tmp_path: Path, password: bool) -> None:
    """Such a server shows everybody the links of earlier runs, so that their key ends; one with a password keeps it."""
    files, told = ServiceFiles(tmp_path), list[str]()
    files.folder.mkdir(parents=True)
    before = files.key()

    class Jobs:
        def start(self, command: Command) -> Any:
            told.append(files.key())
            raise TryAgain(command.module)

    with pytest.raises(TryAgain, match="http_server"):
        Keeper(str(tmp_path), ServiceClient.free_port(), password, print, Jobs()).keep()
    assert (told == [before]) == password


def test_a_note_that_a_lost_power_left_empty_is_none(tmp_path: Path) -> None:
    """Bug: it stood for the folder in which the keeper happened to be. What is noted is what is read."""
    files = ServiceFiles(tmp_path)
    files.folder.mkdir(parents=True)
    keeping.note_folder(files)
    assert keeping.noted_folder(files) == str(Path.cwd())
    (files.folder / "folder").write_text("")
    assert keeping.noted_folder(files) == str(Path.cwd())
