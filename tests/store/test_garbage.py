"""Removal of old runs: what goes, what stays and why, and what a kill, a full disk or strange files do to it."""

import dataclasses
import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fleetune.contracts import json_io
from fleetune.contracts.metrics import Score
from fleetune.contracts.run_config import DataRequest
from fleetune.errors import Refused, TryAgain
from fleetune.store import Store
from fleetune.store.garbage import Removal, remove_old_runs
from fleetune.store.pins import pinned_runs
from tests.support.store.old_runs import add_run, artifact_digest, intact, removed_paths, tree


@pytest.fixture
def runs(store: Store) -> Store:
    """A store with the runs old-1 ... old-4; each has an artifact of its own and one that all share."""
    for number in range(1, 5):
        add_run(store, number)
    return store


def kept(removal: Removal) -> dict[str, str]:
    """Run -> why it stays."""
    return {one.run: one.why for one in removal.kept}


def test_only_what_no_kept_run_needs_goes(runs: Store) -> None:
    """The two newest of four runs stay whole, with what they share with older ones; the rest is gone from the disk."""
    before = sum(len(content) for content in tree(runs.local).values())
    removal = remove_old_runs(runs, 2)
    assert kept(removal) == {"old-4": "one of the 2 newest", "old-3": "one of the 2 newest"}
    assert removed_paths(removal) == {
        *(f"runs/old-{number}/run.json" for number in (1, 2)),
        *(f"artifacts/own/{artifact_digest(number)}" for number in (1, 2)),
    }
    assert [run.id for run in runs.runs.all()] == ["old-4", "old-3"]
    assert intact(runs)
    assert removal.freed_bytes == before - sum(len(content) for content in tree(runs.local).values())
    assert remove_old_runs(runs, 2).removed == ()


def test_runs_aside_remove_no_trained_one(store: Store) -> None:
    """Whatever comes after it, the newest trained run of a name stays, and N of them where N are kept; evaluations,
    comparisons, single stages and refused runs count among the newest alone."""
    for number in (1, 2):
        add_run(store, number, own="checkpoint")
    for number, kind in enumerate(("evaluation", "comparison", "only"), start=3):
        add_run(store, number, kind=kind, own="checkpoint")
    many = kept(remove_old_runs(store, 2, dry_run=True))
    assert many == {
        **{f"old-{number}": "one of the 2 newest" for number in (5, 4)},
        **{f"old-{number}": "one of the 2 newest of old that were trained" for number in (2, 1)},
    }
    assert kept(remove_old_runs(store, 0)) == {"old-2": "the newest trained old"}
    assert intact(store) and store.runs.load("latest", trained=True).id == "old-2"


def test_a_receipt_goes_with_its_run(runs: Store) -> None:
    """Its bytes are counted, and no folder of a removed run is left; that of a kept run stays."""
    for number in (1, 4):
        runs.runs.save_receipt(f"old-{number}", b"{}")
    before = sum(len(content) for content in tree(runs.local).values())
    removal = remove_old_runs(runs, 2)
    assert removal.freed_bytes == before - sum(len(content) for content in tree(runs.local).values())
    assert {path.name for path in (runs.local / "runs").iterdir()} == {"old-3", "old-4"}
    assert runs.runs.receipt("old-4") == b"{}"


def test_curves_go_with_their_run(runs: Store) -> None:
    """TensorBoard files of a removed run go, and those of a kept one and of no run stay."""
    for name in ("old-1", "old-4", "mine"):
        (runs.local / "tensorboard" / name).mkdir(parents=True)
        (runs.local / "tensorboard" / name / "events.out.tfevents.1").write_text("curve")
    removal = remove_old_runs(runs, 2)
    assert [one.path for one in removal.removed if one.what == "TensorBoard files"] == ["tensorboard/old-1"]
    assert {path.name for path in (runs.local / "tensorboard").iterdir()} == {"old-4", "mine"}


def test_a_dry_run_says_the_same_and_changes_nothing(runs: Store) -> None:
    """What a dry run lists is what the removal after it removes; until then every byte stays, and no file is new."""
    before = tree(runs.local)
    planned = remove_old_runs(runs, 1, dry_run=True)
    assert tree(runs.local) == before
    done = remove_old_runs(runs, 1)
    assert dataclasses.replace(planned, dry_run=False) == done
    assert len(done.removed) == 6


def test_a_store_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    """There is nothing to remove, and no folder appears."""
    assert remove_old_runs(Store(tmp_path / "none"), 0).removed == ()
    assert not (tmp_path / "none").exists()


def test_failed_nights_do_not_push_out_the_last_good_run(runs: Store) -> None:
    """The newest runs that are done stay even when as many failed runs are newer."""
    for number in (5, 6):
        add_run(runs, number, state="failed")
    assert kept(remove_old_runs(runs, 2)) == {
        "old-6": "one of the 2 newest",
        "old-5": "one of the 2 newest",
        "old-4": "one of the 2 newest that are done",
        "old-3": "one of the 2 newest that are done",
    }


def test_a_running_run_stays(runs: Store) -> None:
    """A run whose process is alive stays however old it is; one that only says that it runs does not."""
    add_run(runs, 7, state="running", hours=-9)
    add_run(runs, 8, state="running", hours=-8)
    with runs.runs.alive("old-7"):
        assert kept(remove_old_runs(runs, 1)) == {"old-4": "one of the 1 newest", "old-7": "running"}
    assert intact(runs)
    assert "old-7" not in kept(remove_old_runs(runs, 1))


def promote(store: Store, number: int, *, promoted: bool = True) -> Path:
    """Write a decision about a run as promotions are written."""
    folder = store.local / "promotions" / "nightly"
    folder.mkdir(parents=True, exist_ok=True)
    score = json_io.dump(Score(name="accuracy", before=0.1, after=0.7, better="higher"))
    plain = {"run": f"old-{number}", "promoted": promoted, "checkpoint": artifact_digest(number), "scores": [score]}
    path = folder / f"{number:06}.json"
    path.write_text(json.dumps(plain))
    return path


def test_a_promoted_run_stays(runs: Store) -> None:
    """A promotion keeps its run with all artifacts; the record of a model that was not promoted keeps nothing."""
    promote(runs, 1)
    promote(runs, 2, promoted=False)
    removal = remove_old_runs(runs, 1)
    assert kept(removal) == {"old-4": "one of the 1 newest", "old-1": "promoted, promotions/nightly/000001.json"}
    assert intact(runs)


def test_a_damaged_promotion_still_keeps_what_it_names(runs: Store) -> None:
    """Of a promotion that is cut off in the middle, the run and the digests in its first half still stay."""
    path = promote(runs, 1)
    path.write_text(path.read_text()[:90])
    assert "old-1" in kept(remove_old_runs(runs, 1))
    assert intact(runs)


def test_a_promoted_checkpoint_stays_without_its_run(runs: Store) -> None:
    """A promotion keeps its checkpoint even when somebody has deleted the record of its run."""
    promote(runs, 1)
    shutil.rmtree(runs.local / "runs" / "old-1")
    remove_old_runs(runs, 1)
    assert not runs.first_bad("own", artifact_digest(1))


def test_a_promotion_that_cannot_be_read_stops_the_removal(runs: Store) -> None:
    """What an unreadable promotion keeps is unknown, so nothing is removed; the error names the file."""
    (runs.local / "promotions" / "nightly" / "000001.json").mkdir(parents=True)
    before = tree(runs.local)
    with pytest.raises(Refused, match=r"000001\.json: cannot be read"):
        remove_old_runs(runs, 1)
    assert {**tree(runs.local), **before} == {**before, "locks/removal.lock": b""}


def test_pins_name_whole_ids_only(runs: Store) -> None:
    """The promotion of old-12 does not keep old-1."""
    add_run(runs, 12)
    promote(runs, 12)
    assert pinned_runs(runs).runs == {"old-12": "promotions/nightly/000012.json"}


def test_an_artifact_that_a_config_points_to_stays(runs: Store) -> None:
    """A run that starts from the files of an older run's artifact names them by path, and by nothing else."""
    run = runs.runs.load("old-4")
    place = runs.local / "artifacts" / "own" / artifact_digest(1) / "model"
    runs.runs.save(
        dataclasses.replace(run, config=dataclasses.replace(run.config, data=DataRequest(source=str(place))))
    )
    remove_old_runs(runs, 1)
    assert not runs.first_bad("own", artifact_digest(1))
    assert runs.first_bad("own", artifact_digest(2))


def test_a_damaged_record_keeps_what_it_names(runs: Store) -> None:
    """A run record with a flipped byte cannot be parsed; it and all artifacts that it mentions stay."""
    path = runs.local / "runs" / "old-1" / "run.json"
    path.write_bytes(path.read_bytes().replace(b'"state"', b'"stale"', 1))
    assert kept(remove_old_runs(runs, 1)) == {"old-4": "one of the 1 newest", "old-1": "its record cannot be read"}
    assert not runs.first_bad("own", artifact_digest(1))


def test_nothing_that_is_not_the_stores_is_touched(runs: Store, tmp_path: Path) -> None:
    """Files and folders that somebody has put into the store, even inside of an artifact or a run, stay as they are."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine").write_text("precious")
    artifacts = runs.local / "artifacts"
    strange = {
        artifacts / "notes.txt": "a",
        artifacts / "own" / "README": "b",
        artifacts / "own" / ("0" * 32) / "data": "c",
        artifacts / "own" / artifact_digest(1) / "notes.txt": "d",
        runs.local / "runs" / "notes.txt": "e",
        runs.local / "runs" / "old-2" / "notes.txt": "f",
        runs.local / "runs" / "mine" / "diary.txt": "g",
        runs.local / "keys" / "mine.json": "h",
        runs.local / "work" / "mine" / "x": "i",
        runs.local / "prefect" / "prefect.db": "j",
        runs.local / "mine.txt": "k",
    }
    for path, text in strange.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (artifacts / "own" / ("1" * 32)).symlink_to(elsewhere)
    (runs.local / "work").joinpath("2" * 32).symlink_to(elsewhere)
    removal = remove_old_runs(runs, 1)
    assert {path: path.read_text() for path in strange} == strange
    assert (elsewhere / "mine").read_text() == "precious"
    assert (artifacts / "own" / ("1" * 32)).is_symlink()
    left = {one.path: one.why for one in removal.left}
    assert "notes.txt" in left[f"artifacts/own/{artifact_digest(1)}"]
    assert {f"artifacts/own/{'0' * 32}", f"artifacts/own/{'1' * 32}", "artifacts/own/README", "work/mine"} <= set(left)
    assert not (artifacts / "own" / artifact_digest(2)).exists()


def test_work_that_no_run_will_continue_goes(runs: Store) -> None:
    """The work of an interrupted run stays with it and goes with it, unless a process works in it at this moment."""
    keys = {number: runs.runs.load(f"old-{number}").stages[0].key for number in (1, 2, 4)}
    for key in keys.values():
        (runs.work(key) / "checkpoint").write_text("half")
    with runs.lock(keys[2], lambda seconds: True):
        removal = remove_old_runs(runs, 1)
    assert set(runs.work_keys()) == {keys[2], keys[4]}
    assert f"work/{keys[1]}" in removed_paths(removal)
    assert [(one.path, one.why) for one in removal.left] == [(f"work/{keys[2]}", "a run works in it")]


def test_work_that_is_being_removed_is_no_work(runs: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A work folder that a removal has hidden and was killed before it deleted is listed as no attempt's work."""
    gone, kept = (runs.runs.load(f"old-{number}").stages[0].key for number in (1, 4))
    for key in (gone, kept):
        (runs.work(key) / "checkpoint").write_text("half")
    monkeypatch.setattr(shutil, "rmtree", lambda *arguments, **named: None)
    remove_old_runs(runs, 1)
    assert len(list((runs.local / "work").iterdir())) == 2
    assert runs.work_keys() == (kept,)


def test_what_a_killed_process_left_goes(runs: Store) -> None:
    """Partial files of dead processes are counted and deleted; those of living ones stay."""
    dead = runs.local / "artifacts" / "own" / ".x.0123.part"
    dead.mkdir()
    (dead / "half").write_text("12345")
    removal = remove_old_runs(runs, 4)
    assert [(one.what, one.bytes) for one in removal.removed] == [("leftover", 5)]
    assert not dead.exists()


def test_a_full_disk_does_not_matter(runs: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the disk has no room for a new name and for no new file, the same is removed, and the rest is whole."""

    def full(*arguments: object, **named: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    remove_old_runs(runs, 4)  # the lock's file is there, as after every run
    for name in ("rename", "write_bytes", "write_text", "touch"):
        monkeypatch.setattr(Path, name, full)
    removal = remove_old_runs(runs, 1)
    monkeypatch.undo()
    assert len(removal.removed) == 6 and removal.left == ()
    assert not any((runs.local / one.path).exists() for one in removal.removed)
    assert intact(runs)


def test_what_cannot_be_deleted_is_said(runs: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that the system does not delete is named and not counted as freed; all others go."""
    real = shutil.rmtree
    at_fault = artifact_digest(1)

    def rmtree(place: Path, *arguments: object, **named: object) -> None:
        if at_fault in str(place):
            raise PermissionError(errno.EPERM, "Operation not permitted", str(place))
        real(place)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    removal = remove_old_runs(runs, 1)
    assert [one.path for one in removal.left] == [f"artifacts/own/{at_fault}"]
    assert f"artifacts/own/{at_fault}" not in removed_paths(removal)
    assert f"artifacts/own/{artifact_digest(2)}" in removed_paths(removal)


def test_it_waits_for_a_run_that_takes_artifacts(runs: Store) -> None:
    """Nothing is removed while a run has found artifacts that its record does not name yet."""
    before = tree(runs.local)
    told: list[str] = []
    with runs.in_use(lambda seconds: True), runs.in_use(lambda seconds: True), pytest.raises(TryAgain):
        remove_old_runs(runs, 1, waiting=told.append)
    assert len(told) == 1 and told[0].startswith(f"process {os.getpid()} (")
    assert {path: content for path, content in tree(runs.local).items() if "removal.lock" not in path} == before
    with runs.removal(lambda seconds: True), pytest.raises(TryAgain):
        runs.in_use(lambda seconds: True).__enter__()


def test_a_remote_store_is_refused() -> None:
    """Runs of other machines cannot be seen, so nothing of a shared store is removed."""
    with pytest.raises(Refused, match="runs of other machines"):
        remove_old_runs(Store("memory://shared"), 1)


def test_killed_anywhere_nothing_half_removed_is_found(tmp_path: Path) -> None:
    """Killed at each of its file operations, a removal leaves only whole runs, and the next one frees the rest."""
    command = [sys.executable, "-m", "tests.support.store.old_runs", str(tmp_path)]
    subprocess.run(command, check=True, timeout=300)
    stores = [Store(folder) for folder in sorted(tmp_path.iterdir()) if folder.name != "warm"]
    assert len(stores) > 15
    undisturbed = set(tree(tmp_path / "warm"))
    for store in stores:
        assert intact(store), store.root
        remove_old_runs(store, 1)
        assert intact(store), store.root
        assert set(tree(store.local)) == undisturbed, store.root


def test_two_removals_at_once(runs: Store) -> None:
    """Two processes that remove at the same time end well, and what is to stay is whole."""
    program = "import sys, time; from fleetune.store import Store; from fleetune.store.garbage import remove_old_runs; "
    program += "remove_old_runs(Store(sys.argv[1]), 1, pause=lambda s: bool(time.sleep(s)))"
    both = [subprocess.Popen([sys.executable, "-c", program, str(runs.local)]) for _ in range(2)]
    assert [one.wait(timeout=120) for one in both] == [0, 0]
    assert [run.id for run in runs.runs.all()] == ["old-4"]
    assert intact(runs)
    assert os.listdir(runs.local / "artifacts" / "own") == [artifact_digest(4)]
