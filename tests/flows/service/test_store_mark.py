"""Whose the files of Prefect in a store are is told by a mark, which only this user's home can make."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetune.errors import Refused
from flows import prefect_server, store_mark
from flows.service import control
from flows.service_files import HOME, ServiceFiles, claim_home, hold, make_home
from tests.support.flows.service.client import ServiceClient

ASKED = r"prefect: programs are run by what is in it, .*: fleetune up --adopt, .* move that folder away"


@pytest.fixture
def home_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Changes to the home of another user, on another machine. No server is configured."""
    monkeypatch.delitem(sys.modules, "prefect", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)

    def change(name: str) -> None:
        (tmp_path / name).mkdir(exist_ok=True)
        monkeypatch.setenv("HOME", str(tmp_path / name))

    change("own")
    return change


def used(store: Path) -> Path:
    """The folder of Prefect's files in a store, after a service or, without a password, a run."""
    make_home(store / HOME)
    (store / HOME / "prefect.db").write_text("theirs")
    return store / HOME


def begin(home: Path) -> None:
    """Begin a run, which nothing is asked of, and a service."""
    prefect_server.check_configured_server(home)
    make_home(home)
    claim_home(home, adopt=False)


@pytest.mark.parametrize("brought", ["prefect.db", "service/secret", "ui/index.html", "service"])
@pytest.mark.parametrize("marked", [True, False])
def test_what_a_store_brings_along_is_refused(
    tmp_path: Path, home_of: Callable[[str], None], brought: str, marked: bool
) -> None:
    """Bug: the password and database of a store that somebody had handed over were used, so that its giver knew the
    one and had the other run programs. Marks of another home count as none; nothing is changed."""
    home_of("giver")
    home = used(tmp_path / "given" / "runs")
    (home / "prefect.db").unlink()
    if brought == "service":
        (home / brought).symlink_to(tmp_path)
    else:
        (home / brought).parent.mkdir(exist_ok=True)
        (home / brought).write_text("theirs")
    if not marked:
        (home / store_mark.FILE).unlink()
    before = sorted(home.rglob("*"))
    home_of("own")
    prefect_server.check_configured_server(home)  # runs have a server and a password of their own
    make_home(home)
    with pytest.raises(Refused, match=ASKED):
        control.up(home.parent, str(home.parent), control.ServiceOptions(), print)
    assert sorted(home.rglob("*")) == before


@pytest.mark.parametrize("lacks", ["mark", "home"])
def test_what_is_taken_over_stays_so(tmp_path: Path, home_of: Callable[[str], None], lacks: str) -> None:
    """A store of an older version, which has no mark, and one of a home that is gone keep their history: once adopted,
    no more is asked."""
    home = used(tmp_path / "runs")
    if lacks == "mark":
        (home / store_mark.FILE).unlink()
    else:
        home_of("new")
    with pytest.raises(Refused, match=ASKED):
        begin(home)
    claim_home(home, adopt=True)
    begin(home)
    assert (home / "prefect.db").read_text() == "theirs"


def test_a_store_of_two_homes_is_taken_over_once_by_each(tmp_path: Path, home_of: Callable[[str], None]) -> None:
    """Bug: the mark of one home replaced that of the other, so that each change was asked about."""
    home = used(tmp_path / "runs")
    home_of("other")
    claim_home(home, adopt=True)
    for name in ("own", "other", "own"):
        home_of(name)
        begin(home)


def test_an_own_store_that_was_moved_is_known_again(tmp_path: Path, home_of: Callable[[str], None]) -> None:
    """Renamed or put back from a backup, its folder or its place is what it was; a copy elsewhere is asked about."""
    home = used(tmp_path / "runs")
    backup = Path(shutil.copytree(tmp_path / "runs", tmp_path / "backup"))
    with pytest.raises(Refused, match=ASKED):
        begin(backup / HOME)
    renamed = (tmp_path / "runs").rename(tmp_path / "renamed")
    begin(renamed / HOME)
    shutil.copytree(renamed, tmp_path / "again", ignore=shutil.ignore_patterns("prefect.db"))
    renamed.rename(tmp_path / "kept")
    (tmp_path / "again").rename(renamed)
    begin(renamed / HOME)
    assert not home.exists()


@pytest.mark.parametrize("machine", ["3f2a", ""])
def test_a_user_whose_home_keeps_nothing(
    tmp_path: Path, home_of: Callable[[str], None], machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run in a fresh folder needs no home. Later ones know it by the machine's id; where there is none either, they
    are told what to set."""
    monkeypatch.setenv("HOME", "/proc/none")
    monkeypatch.setattr(store_mark, "MACHINE", tmp_path / "machine-id")
    (tmp_path / "machine-id").write_text(machine)
    begin(tmp_path / "runs" / HOME)
    home = used(tmp_path / "runs")
    if machine:
        begin(home)
        (tmp_path / "machine-id").write_text("another")
        with pytest.raises(Refused, match=ASKED):
            begin(home)
        return
    with pytest.raises(Refused, match="let XDG_STATE_HOME name a folder in which you can keep a key, as /proc/none"):
        begin(home)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    claim_home(home, adopt=True)
    begin(home)


def test_locks_alone_are_no_files_of_others(tmp_path: Path, home_of: Callable[[str], None]) -> None:
    """A run that uses a server elsewhere leaves a lock in the store; a run without that server is not refused then."""
    hold(tmp_path, "one").release()
    begin(ServiceFiles(tmp_path).home)


def test_up_takes_over_when_it_is_told(service: ServiceClient) -> None:
    """The service of an older version, which runs, has no mark: its store is refused, and taken over by `--adopt`."""
    mark = service.files.home / store_mark.FILE
    mark.unlink()
    assert "take it over: fleetune up --adopt" in service.command("up", code=Refused.exit_code).stderr
    service.command("up", "--adopt")
    assert mark.exists()
