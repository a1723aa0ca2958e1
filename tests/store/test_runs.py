"""Run records, and the locks that distinguish living from dead runs."""

import dataclasses
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fleetune.errors import Refused, TryAgain
from fleetune.store import Lock, Store
from fleetune.store.garbage import remove_old_runs
from fleetune.store.lock import is_held, remove_free
from tests.support.store.run_records import CONFIG, a_run


def test_runs_are_listed_newest_first(store: Store) -> None:
    """Runs are sorted by start, whatever their ids; `latest` and id prefixes name a run."""
    for run in (a_run("b-1", "2026-01-02"), a_run("a-1", "2026-01-03"), a_run("c-1", "2026-01-01")):
        store.runs.save(run)
    assert [run.id for run in store.runs.all()] == ["a-1", "b-1", "c-1"]
    assert [run.id for run in store.runs.named("other")] == []
    assert store.runs.load("latest").id == "a-1"
    assert store.runs.load("b") == a_run("b-1", "2026-01-02")
    assert store.runs.load("b-1").outputs == {"plan": "b0" * 16}


def test_a_clock_that_was_set_back_makes_no_run_older(store: Store) -> None:
    """The run that began last is `latest`, and the last that is removed, though its time is before that of others; runs
    of older versions, which have no number, come before all others."""
    for run in (a_run("old-1", "2026-05-01"), a_run("old-2", "2026-05-02")):
        store.runs.save(run)
    for name, started in (("new-1", "2026-05-03"), ("new-2", "2026-01-01"), ("new-3", "2026-01-01")):
        store.runs.save(dataclasses.replace(a_run(name, started), number=store.runs.next_number()))
    assert [run.number for run in store.runs.all()] == [3, 2, 1, 0, 0]
    assert [run.id for run in store.runs.all()] == ["new-3", "new-2", "new-1", "old-2", "old-1"]
    assert store.runs.load("latest").id == "new-3" and store.runs.load("previous").id == "new-2"
    assert [one.run for one in remove_old_runs(store, 2).kept] == ["new-3", "new-2"]
    assert store.runs.next_number() == 4


def test_names_that_a_user_thinks_of(store: Store) -> None:
    """`fleetune diff latest demo` once failed because several ids begin with demo: a config's name means its newest
    run, and ~N counts back."""
    for number, name in enumerate(("demo", "demo", "demo-lora", "demo")):
        config = dataclasses.replace(CONFIG, name=name)
        store.runs.save(dataclasses.replace(a_run(f"{name}-{number}", f"2026-01-0{number + 1}"), config=config))
    named = {
        **{"latest": "demo-3", "latest~0": "demo-3", "latest~1": "demo-lora-2", "previous": "demo-lora-2"},
        **{"demo": "demo-3", "demo~1": "demo-1", "demo~2": "demo-0", "demo-lora": "demo-lora-2"},
        **{"demo-3~1": "demo-lora-2", "demo-l~1": "demo-1", "demo-1": "demo-1"},
    }
    assert {name: store.runs.load(name).id for name in named} == named


def test_names_that_count_runs_which_are_done(store: Store) -> None:
    """Runs that did not end well can be left out of the count; an id names any run."""
    states = ("done", "failed", "done", "interrupted", "running")
    for number, state in enumerate(states):
        store.runs.save(a_run(f"r-{number}", f"2026-01-0{number + 1}", state))
    store.runs.save(dataclasses.replace(a_run("x-1", "2026", "failed"), config=dataclasses.replace(CONFIG, name="x")))
    named = {
        **{"latest": "r-2", "previous": "r-0", "small": "r-2", "small~1": "r-0"},
        **{"r-3": "r-3", "r-3~1": "r-2", "r-2~1": "r-0"},
    }
    assert {name: store.runs.load(name, done=True).id for name in named} == named
    for name, said in (("latest~2", "is done; as many as 1 can be counted"), ("x", "is done; the newest are")):
        with pytest.raises(Refused, match=f"there is none that {said}"):
            store.runs.load(name, done=True)


def test_runs_beside_the_pipeline_are_never_meant(store: Store) -> None:
    """Neither `latest` nor a config's name is an evaluation, a part of a comparison, a single stage or a refused run,
    and only a run with a checkpoint of its own counts as trained; all are found by their ids."""
    trained = a_run("r-1", "2026-01-01")
    stage = dataclasses.replace(trained.stages[0], stage="train", outputs={"checkpoint": "c0" * 16})
    store.runs.save(dataclasses.replace(trained, stages=(stage,)))
    store.runs.save(a_run("r-2", "2026-01-02"))
    for number, kind in enumerate(("only", "evaluation", "comparison", "rehearsal")):
        aside = dataclasses.replace(a_run(f"x-{kind}", f"2026-02-0{number + 1}"), kind=kind, stages=(stage,))
        store.runs.save(aside)
        assert store.runs.load(f"x-{kind}") == aside
    store.runs.save(dataclasses.replace(a_run("x-refused", "2026-03", "refused"), exit_code=65))
    store.runs.save(dataclasses.replace(a_run("x-older", "2026-04", "failed"), exit_code=64))
    assert store.runs.load("x-older").state == "refused", "an older version called it failed"
    named = {name: store.runs.load(name).id for name in ("latest", "small", "previous", "small~1", "x-refused~1")}
    assert named == {"latest": "r-2", "small": "r-2", "previous": "r-1", "small~1": "r-1", "x-refused~1": "r-2"}
    assert {store.runs.load(name, trained=True).id for name in ("latest", "small")} == {"r-1"}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        pytest.param("latest~" + "7" * 5000, "write how many runs back after ~, such as latest~1", id="5,000 digits"),
        ("latest~2", "there is none; as many as 1 can be counted back from a-2"),
        ("small~9", "there is none; as many as 1 can be counted back from a-2"),
        ("latest~x", "write how many runs back after ~, such as latest~1"),
        ("latest~", "write how many runs back after ~"),
        ("latest~-1", "write how many runs back after ~"),
        ("~1", "there is none; the newest are a-1, a-2"),
        ("a~1", r"several begin like that \(a-1, a-2\)"),
        ("other~1", "there is none; the newest are a-1, a-2"),
    ],
)
def test_names_that_name_nothing(store: Store, name: str, said: str) -> None:
    """Unknown names are refused with the existing ones."""
    for number in (1, 2):
        store.runs.save(a_run(f"a-{number}", f"2026-01-0{number}"))
    with pytest.raises(Refused, match=f"^run '{name.partition('~')[0]}.*{said}"):
        store.runs.load(name)


def test_a_run_that_is_not_there_is_refused_with_what_is(store: Store) -> None:
    """Unknown and ambiguous ids are refused in one sentence."""
    with pytest.raises(Refused, match="run 'x': there is none; the store has no runs yet"):
        store.runs.load("x")
    for name in ("a-1", "a-2"):
        store.runs.save(a_run(name, "2026"))
    with pytest.raises(Refused, match="several begin like that \\(a-1, a-2\\)"):
        store.runs.load("a")
    with pytest.raises(Refused, match="the newest are a-1, a-2"):
        store.runs.load("")


def test_a_run_without_its_process_reads_as_interrupted(store: Store) -> None:
    """A run is running while its lock is held and interrupted afterwards; a finished run keeps its state."""
    store.runs.save(a_run("r", "2026", "running"))
    with store.runs.alive("r"):
        assert store.runs.load("r").state == "running"
    assert store.runs.load("r").state == "interrupted"
    store.runs.save(dataclasses.replace(a_run("r", "2026"), state="failed"))
    assert store.runs.load("r").state == "failed"


def test_a_damaged_run_record_is_named(store: Store) -> None:
    """An unreadable run.json is named."""
    store.storage.write("runs/r/run.json", b'{"id": 3}')
    with pytest.raises(Refused, match="runs/r/run.json"):
        store.runs.load("r")


def test_weight_decay_of_older_runs_stays_that_of_all_weights(store: Store) -> None:
    """A record that does not say on what its weight decay is means all; one without a decay says nothing."""
    decays = dataclasses.replace(CONFIG, training=dataclasses.replace(CONFIG.training, weight_decay=0.1))
    for name, config in (("plain", CONFIG), ("new", decays), ("old", decays)):
        store.runs.save(dataclasses.replace(a_run(name, "2026"), config=config))
    path = "runs/old/run.json"
    plain = json.loads(store.storage.read(path) or b"")
    assert plain["config"]["training"].pop("weight_decay_on") == "weights"
    store.storage.write(path, json.dumps(plain).encode())
    assert [store.runs.load(name).config.training.weight_decay_on for name in ("plain", "new", "old")] == [
        "", "weights", "all",
    ]  # fmt: skip
    assert b"weight_decay_on" not in (store.storage.read("runs/plain/run.json") or b"")


def test_a_record_that_cannot_be_read_hides_no_other(store: Store) -> None:
    """One damaged run.json changes neither the list of other runs nor `latest`."""
    store.runs.save(a_run("good", "2026-01-01"))
    store.storage.write("runs/bad/run.json", b"{}")
    assert [run.id for run in store.runs.all()] == [store.runs.load("latest").id] == ["good"]


def test_a_lock_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    """A second taker waits, is told once by whom it is held, gives up on request, and succeeds after the release."""
    path, said = tmp_path / "a.lock", list[str]()
    first = Lock(path, lambda _: True)
    second = Lock(path, lambda _: True, said.append)
    with first:
        assert is_held(path) and not second.take()
        with pytest.raises(TryAgain, match="a.lock"), second:
            pass
    assert len(said) == 1 and said[0].startswith(f"process {os.getpid()} (")
    with second:
        assert is_held(path)
    assert not is_held(path) and not is_held(tmp_path / "never")


def test_a_lock_whose_file_is_removed_keeps_others_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of a held lock is not removed; one that goes between its opening and its locking is made anew, so that
    whoever comes next meets the same file."""
    path, real = tmp_path / "a.lock", fcntl.flock
    with Lock(path, lambda _: True):
        assert not remove_free(path) and is_held(path)
    assert remove_free(path) and not path.exists()

    def removed_meanwhile(file: int, kind: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real)
        path.unlink()
        real(file, kind)

    monkeypatch.setattr(fcntl, "flock", removed_meanwhile)
    with Lock(path, lambda _: True):
        assert is_held(path) and not Lock(path, lambda _: True).take()


def test_a_lock_that_only_its_owner_may_look_at_counts_as_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: `fleetune runs` of another user of the machine ended with an unforeseen error at a run that was at work."""
    (tmp_path / "lock").touch()

    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    assert is_held(tmp_path / "lock")


@contextmanager
def holding(path: Path, kind: str) -> "Iterator[subprocess.Popen[str]]":
    """Another process that holds a lock; kind: an argument of Lock."""
    code = (
        "import sys; from pathlib import Path; from fleetune.store import Lock\n"
        f"lock = Lock(Path(sys.argv[1]), lambda _: True, {kind}=True); print(lock.take(), flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "True\n"
        try:
            yield holder
        finally:
            holder.kill()


@pytest.mark.parametrize("kind", ["shared", "brief"])
def test_a_lock_that_a_stopped_process_holds(kind: str, tmp_path: Path) -> None:
    """Bug: after Ctrl-Z of a run, every other one waited in silence and for ever for what it held. Whoever waits is
    told at once which process it is, and what to do once it is stopped; a brief lock is given up ten seconds later."""
    path, told, pauses = tmp_path / "a.lock", list[str](), list[float]()
    with holding(path, kind) as holder:

        def pause(seconds: float) -> bool:
            pauses.append(seconds)
            if len(pauses) == 50:
                os.kill(holder.pid, signal.SIGSTOP)
                os.waitpid(holder.pid, os.WUNTRACED)
            return len(pauses) == 1000

        with pytest.raises(TryAgain) as brief, Lock(path, pause, told.append, brief=True):
            pass
        assert 14.9 < sum(pauses) < 16.0 and str(brief.value).startswith(f"a.lock: this lock is held by {told[1]}")
        assert len(told) == 2 and told[0].startswith(f"process {holder.pid} (") and str(path) in told[0]
        assert told[1] == f"{told[0]}, which is stopped: fg in its terminal lets it go on, kill -9 {holder.pid} ends it"
        with pytest.raises(TryAgain, match="stopped while another process"), Lock(path, pause, told.append):
            pass
        assert len(pauses) == 1000 and told[2:] == told[1:2], "others are waited for"


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    """The lock of a process killed with SIGKILL is free."""
    path = tmp_path / "a.lock"
    with holding(path, "brief") as holder:
        assert is_held(path)
        holder.kill()
        holder.wait()
    assert Lock(path, lambda _: True).take()
