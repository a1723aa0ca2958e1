"""Removal of old runs, and of the artifacts and unfinished work that no other run needs.

Run records go first, so that no record is left whose artifacts are gone. An artifact or work folder disappears by one
rename under the lock `Store.removal`, and is deleted afterwards, so that nothing half-removed is ever found: what a
killed removal leaves behind is collected by the next run or removal. Nothing is written, so that a full disk does not
matter. Records of stage keys stay: by them a later run says that the artifacts were there once.
"""

import errno
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import field
from pathlib import Path

from fleetune.contracts import json_io
from fleetune.contracts.record import not_negative, record
from fleetune.errors import Refused
from fleetune.filesystem import sync
from fleetune.store import partial_files
from fleetune.store.lock import is_held
from fleetune.store.manifest import MANIFEST, Manifest, content_digest
from fleetune.store.pins import Pins, named_digests, pinned_runs
from fleetune.store.runs import RECEIPT
from fleetune.store.storage import LocalStorage
from fleetune.store.store import TENSORBOARD, WRITTEN, Store

RUN, ARTIFACT, WORK, PART = "run", "artifact", "unfinished work", "leftover"
CURVES = "TensorBoard files"
NAME = re.compile(r"[0-9a-f]{32}")
FULL = (errno.ENOSPC, errno.EDQUOT)


@record
class Removed:
    """One thing that was removed, or in a dry run would be."""

    what: str
    """run, artifact, unfinished work, TensorBoard files, or leftover (of a process that was killed)."""
    path: str
    """Relative to the store."""
    bytes: int


@record
class Kept:
    """One run that stays."""

    run: str
    why: str


@record
class LeftAlone:
    """Something in the store's folders that is not the store's own, or could not be removed."""

    path: str
    """Relative to the store."""
    why: str


@record
class Removal:
    """What one removal did, or in a dry run would do."""

    dry_run: bool
    removed: tuple[Removed, ...] = ()
    kept: tuple[Kept, ...] = ()
    left: tuple[LeftAlone, ...] = ()

    @property
    def freed_bytes(self) -> int:
        """Bytes of all files that were removed."""
        return sum(one.bytes for one in self.removed)


@record
class _Doomed:
    """One thing to remove, and its folder or file."""

    what: str
    place: Path
    bytes: int


@record
class _Plan:
    """What a removal will do."""

    doomed: tuple[_Doomed, ...]
    kept: tuple[Kept, ...]
    left: tuple[LeftAlone, ...]


@record
class _Needs:
    """Runs that stay with their reasons, runs that go, and every digest that those that stay name."""

    kept: dict[str, str] = field(default_factory=dict)
    gone: tuple[str, ...] = ()
    digests: frozenset[str] = frozenset()


def remove_old_runs(
    store: Store,
    keep: int,
    *,
    dry_run: bool = False,
    pause: Callable[[float], bool] = lambda seconds: True,
    waiting: Callable[[str], None] = lambda holder: None,
) -> Removal:
    """Remove all runs but the `keep` newest, the `keep` newest that are done, the `keep` newest of each name that were
    trained (at least one), running and promoted ones. Runs that are `aside` count among the newest alone.

    Waits while a run takes artifacts from the store; `pause` and `waiting` are those of Lock. Refused: folders that
    this user may not read, and a remote store, because the runs of other machines that share it cannot be seen.
    """
    not_negative("gc", keep=keep)
    if not isinstance(store.storage, LocalStorage):
        raise Refused(f"{store.root}: runs of other machines may use this store; remove old runs where it is a folder")
    if not store.local.is_dir():
        return Removal(dry_run=dry_run)
    try:
        if dry_run:
            return _removal(_planned(store, keep), store, {}, dry_run=True)
        with store.removal(pause, waiting):
            plan = _planned(store, keep)
            hidden, failed = _hide(plan.doomed, store)
    except PermissionError as error:
        raise Refused(f"{error.filename}: it may not be read or changed by this user; nothing was removed") from None
    return _removal(plan, store, {**failed, **_delete(hidden)}, dry_run=False)


def _planned(store: Store, keep: int) -> _Plan:
    needs = _needs(store, keep)
    left: list[LeftAlone] = []
    doomed = [
        *(_doomed(RUN, store.local / "runs" / run / "run.json") for run in needs.gone),
        *_artifacts(store.local, needs.digests, left),
        *_work(store, needs.digests, left),
        *(_doomed(CURVES, folder) for run in needs.gone if (folder := store.local / TENSORBOARD / run).is_dir()),
        *(_doomed(PART, part) for part in _abandoned(store.local)),
    ]
    kept = tuple(Kept(run=run, why=why) for run, why in needs.kept.items())
    return _Plan(doomed=tuple(doomed), kept=kept, left=tuple(left))


def _needs(store: Store, keep: int) -> _Needs:
    """Sort the runs into those that stay and those that go; a record that cannot be read stays, with all it names."""
    pins: Pins = pinned_runs(store)
    runs = list(store.runs.newest_first())
    done = [run.id for run in runs if run.state == "done" and not run.aside]
    trained: dict[str, list[str]] = {}
    for run in runs:
        if run.trained:
            trained.setdefault(run.config.name, []).append(run.id)
    most = max(1, keep)
    unreadable = set(store.storage.names("runs")) - {run.id for run in runs}
    reasons = {
        **dict.fromkeys(done[:keep], f"one of the {keep} newest that are done"),
        **{run.id: f"one of the {keep} newest" for run in runs[:keep]},
        **{
            run: f"one of the {most} newest of {name} that were trained" if most > 1 else f"the newest trained {name}"
            for name, ids in trained.items()
            for run in ids[:most]
        },
        **{run: "its record cannot be read" for run in sorted(unreadable) if _record(store, run) is not None},
        **{run: f"promoted, {path}" for run, path in pins.runs.items()},
        **{run.id: "running" for run in runs if run.state == "running"},
    }
    order = [*(run.id for run in runs if run.id in reasons), *(run for run in reasons if run in unreadable)]
    named = (named_digests(_record(store, run) or b"") for run in order)
    return _Needs(
        kept={run: reasons[run] for run in order},
        gone=tuple(run.id for run in runs if run.id not in reasons),
        digests=pins.digests.union(*named),
    )


def _record(store: Store, run: str) -> bytes | None:
    """The bytes of a run record; None if there is none. Refused: one that cannot be read."""
    try:
        return store.storage.read(f"runs/{run}/run.json")
    except OSError as error:
        place = f"{store.root}/runs/{run}/run.json"
        raise Refused(f"{place}: cannot be read ({error.strerror}), so what this run needs is unknown") from None


def _artifacts(root: Path, needed: frozenset[str], left: list[LeftAlone]) -> Iterator[_Doomed]:
    """Yield the artifacts that nobody needs; folders that are not exactly what was stored are `left` alone."""
    for kind in _folders(root / "artifacts"):
        for place in _entries(kind):
            if place.name in needed and NAME.fullmatch(place.name):
                continue
            why = _foreign(place, kind.name)
            if why:
                left.append(LeftAlone(path=place.relative_to(root).as_posix(), why=why))
            else:
                yield _doomed(ARTIFACT, place)


def _foreign(place: Path, kind: str) -> str:
    """Why a folder is not an artifact of the store; empty if it is one."""
    if place.is_symlink() or not place.is_dir() or not NAME.fullmatch(place.name):
        return "it is no artifact of this store"
    try:
        manifest = json_io.read(Manifest, place / MANIFEST)
    except Refused:
        return "it has no readable manifest.json; look at it and delete it yourself"
    if manifest.kind != kind or content_digest(manifest.files) != place.name:
        return "its manifest.json is that of another artifact; look at it and delete it yourself"
    own = {MANIFEST, *(file.path for file in manifest.files)}
    odd = sorted(
        path.relative_to(place).as_posix()
        for path in place.rglob("*")
        if path.is_symlink() or (not path.is_dir() and path.relative_to(place).as_posix() not in own)
    )
    return f"it holds {odd[0]}, which does not belong to the artifact; move that away" if odd else ""


def _work(store: Store, needed: frozenset[str], left: list[LeftAlone]) -> Iterator[_Doomed]:
    """Yield the work folders of attempts that nobody will continue."""
    for place in _entries(store.local / "work"):
        if NAME.fullmatch(place.name) and place.name in needed:
            continue
        if place.is_symlink() or not place.is_dir() or not NAME.fullmatch(place.name):
            left.append(LeftAlone(path=f"work/{place.name}", why="it is no work folder of this store"))
        elif is_held(store.local / "locks" / f"{place.name}.lock"):
            left.append(LeftAlone(path=f"work/{place.name}", why="a run works in it"))
        else:
            yield _doomed(WORK, place)


def _abandoned(root: Path) -> Iterator[Path]:
    for pattern in WRITTEN:
        for folder in root.glob(pattern):
            yield from partial_files.abandoned(folder)


def _hide(doomed: Iterable[_Doomed], store: Store) -> tuple[dict[Path, Path], dict[Path, str]]:
    """Make everything disappear from the store.

    Returns former place -> part that is left to delete, and place -> why it could not be removed.
    """
    hidden: dict[Path, Path] = {}
    failed: dict[Path, str] = {}
    for one in doomed:
        try:
            if one.what == RUN:
                _drop_record(one.place, store)
            elif one.what == WORK:
                hidden[one.place] = _hidden_work(one.place, store)
            else:
                hidden[one.place] = one.place if one.what == PART else _renamed(one.place)
        except OSError as error:
            failed[one.place] = error.strerror or str(error)
    for folder in {one.place.parents[one.what == RUN] for one in doomed}:
        with suppress(OSError):
            sync(folder)
    return hidden, failed


def _drop_record(place: Path, store: Store) -> None:
    """Delete a run record, its receipt, its lock, and its folder unless somebody keeps other files there."""
    for file in (place.with_name(RECEIPT), place):
        file.unlink(missing_ok=True)
    with suppress(OSError):
        place.parent.rmdir()
    with suppress(OSError):
        (store.local / "locks" / f"run-{place.parent.name}.lock").unlink()


def _hidden_work(place: Path, store: Store) -> Path:
    """Rename a work folder, unless a process works in it."""
    lock = store.lock(place.name, lambda seconds: True)
    if not lock.take():
        raise OSError(errno.EBUSY, "a run works in it")
    try:
        return _renamed(place)
    finally:
        lock.release()


def _renamed(place: Path) -> Path:
    """Rename a folder to a part and return that.

    On a disk without room for the new name it stays, without its manifest: then it is no artifact any more.
    """
    part = partial_files.part_path(place)
    try:
        place.rename(part)
    except OSError as error:
        if error.errno not in FULL:
            raise
        (place / MANIFEST).unlink(missing_ok=True)
        return place
    return part


def _delete(hidden: Mapping[Path, Path]) -> dict[Path, str]:
    """Delete what was hidden; return former place -> why it could not be deleted."""
    failed: dict[Path, str] = {}
    for place, part in hidden.items():
        try:
            shutil.rmtree(part) if part.is_dir() and not part.is_symlink() else part.unlink()
        except FileNotFoundError:
            if part.exists():  # another process deletes it too
                shutil.rmtree(part, ignore_errors=True)
        except OSError as error:
            failed[place] = f"its file {error.filename} cannot be deleted ({error.strerror})"
    return failed


def _removal(plan: _Plan, store: Store, failed: Mapping[Path, str], *, dry_run: bool) -> Removal:
    def shown(place: Path) -> str:
        return place.relative_to(store.local).as_posix()

    return Removal(
        dry_run=dry_run,
        removed=tuple(
            Removed(what=one.what, path=shown(one.place), bytes=one.bytes)
            for one in plan.doomed
            if one.place not in failed
        ),
        kept=plan.kept,
        left=(*plan.left, *(LeftAlone(path=shown(place), why=why) for place, why in failed.items())),
    )


def _doomed(what: str, place: Path) -> _Doomed:
    receipt_bytes = _bytes(place.with_name(RECEIPT)) if what == RUN else 0
    return _Doomed(what=what, place=place, bytes=_bytes(place) + receipt_bytes)


def _bytes(place: Path) -> int:
    """Bytes of a file, or of all files below a folder."""
    files = [place]
    if place.is_dir() and not place.is_symlink():  # another process may delete it meanwhile, which os.walk takes
        files = [Path(folder, name) for folder, _, names in os.walk(place) for name in names]
    total = 0
    for path in files:
        with suppress(OSError):
            total += path.lstat().st_size
    return total


def _folders(place: Path) -> Iterator[Path]:
    return (path for path in _entries(place) if path.is_dir())


def _entries(place: Path) -> list[Path]:
    """What lies in a folder, without partial files; empty if it does not exist."""
    return sorted(path for path in place.iterdir() if not path.name.startswith(".")) if place.is_dir() else []
