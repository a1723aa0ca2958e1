"""State that training can go on from under any plan: tensors by name, never by device or segment.

    checkpoints/round-000050/SEGMENT.safetensors ...   parameters, buffers and optimizer state, each by name
    checkpoints/round-000050/commits.jsonl             the rounds that are in it, as the commit log had them
    checkpoints/round-000050/round.json                size and digest of each of these files; written last

A checkpoint is whole when round.json is there and every file is what it says. The two newest are kept: when the newest
turns out to be damaged, training goes on from the one before.
"""

import hashlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fleetune.contracts import wire
from fleetune.contracts.record import record
from fleetune.errors import Refused, TryAgain
from fleetune.models.segment import Segment
from fleetune.training.commits import COMMITS
from fleetune.training.durable import flush, write_durably
from fleetune.training.updates import Updates

CHECKPOINTS = "checkpoints"
WHOLE = "round.json"
MODEL, OPTIMIZER = "model|", "optimizer|"  # '|' appears in no parameter name


@record
class FileDigest:
    """What a file must hold."""

    bytes: int
    sha256: str


@record
class CheckpointRound:
    """Marks a checkpoint as whole."""

    round: int
    """Rounds that are in it."""
    files: tuple[str, ...]
    """Its shards."""
    digests: dict[str, FileDigest] = field(default_factory=dict)
    """Of every shard and of the commit log. Checkpoints of earlier versions have none, and are not used."""

    def __post_init__(self) -> None:
        for name in (*self.files, *self.digests):
            if name in ("", "..") or Path(name).name != name:
                raise Refused(f"checkpoint: {name!r} is not the name of a file in its folder")


Found = tuple[Path, CheckpointRound]


def folder_of(work: Path, round: int) -> Path:
    """Where the state after `round` rounds goes."""
    return work / CHECKPOINTS / f"round-{round:06d}"


def newest_whole(work: Path, note: Callable[[str], None]) -> Found | None:
    """The newest checkpoint whose files are all what was written; `note` is told why newer ones are passed over."""
    for round, folder in sorted(_rounds(work), reverse=True):
        try:
            mark = wire.read(CheckpointRound, folder / WHOLE)
        except Refused as error:
            note(f"the checkpoint of round {round} is not used ({error})")
            continue
        bad = first_bad(folder, mark, (*mark.files, COMMITS))
        if mark.round != round:
            bad = f"{folder / WHOLE} is of round {mark.round}"
        if not bad:
            return folder, mark
        note(f"the checkpoint of round {round} is not used ({bad})")
    return None


def first_bad(folder: Path, mark: CheckpointRound, names: Iterable[str]) -> str:
    """What is wrong with the first file of a checkpoint that is missing or not what was written; '' for none."""
    for name in names:
        path = folder / name
        if name not in mark.digests:
            return f"{folder / WHOLE} has no digest of {name}, so that nobody can tell whether it is damaged"
        try:
            found = digest_of(path)
        except OSError as error:
            return f"{path} cannot be read: {error.strerror}"
        if found != mark.digests[name]:
            return f"{path} is damaged, its content is not what was written"
    return ""


def digest_of(path: Path) -> FileDigest:
    """Size and digest of a file as it is now."""
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return FileDigest(bytes=file.tell(), sha256=sha256)


def write_shard(folder: Path, name: str, segment: Segment, updates: Updates) -> tuple[str, FileDigest]:
    """Write what one segment must not lose; the file's name and digest. TryAgain when it cannot be written."""
    trained = {n: p.detach() for n, p in segment.parameters.items() if p.requires_grad}
    tensors = {MODEL + n: t for n, t in {**trained, **segment.buffers}.items()}
    tensors.update({OPTIMIZER + n: t for n, t in updates.state().items()})
    file = f"{name}.safetensors"
    part = folder / f"{file}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file({n: t.cpu().contiguous() for n, t in tensors.items()}, part)
        flush(part)
        digest = digest_of(part)
        part.replace(folder / file)
        flush(folder)
    except (OSError, SafetensorError) as error:
        part.unlink(missing_ok=True)  # the room it took may be all that is missing
        raise not_written(folder, error) from None
    return file, digest


def mark_whole(work: Path, round: int, shards: Mapping[str, FileDigest], commits: str, before: Path | None) -> Found:
    """Declare a checkpoint whole, then drop all others but the one `before`.

    shards: digests of the files as their writers know them; commits: the lines of the commit log.
    Everything is on disk before anything is dropped. TryAgain when a shard is not what its writer wrote, or the disk
    does not take it: then nothing is dropped.
    """
    folder = folder_of(work, round)
    try:
        write_durably(commits, folder / COMMITS)
        digests = {**shards, COMMITS: digest_of(folder / COMMITS)}
        mark = CheckpointRound(round=round, files=tuple(shards), digests=digests)
        bad = first_bad(folder, mark, digests)
        if bad:
            raise TryAgain(f"{bad}; run again to go on from the checkpoint before")
        for name in shards:  # those that were fetched from another machine are on no disk yet
            flush(folder / name)
        write_durably(wire.text(mark), folder / WHOLE)
        for each in (work / CHECKPOINTS, work):
            flush(each)
    except OSError as error:
        raise not_written(folder, error) from None
    for _, other in _rounds(work):
        if other not in (folder, before):
            drop(other)
    return folder, mark


def not_written(folder: Path, error: Exception) -> TryAgain:
    """A checkpoint that did not get onto its disk, in words."""
    why = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return TryAgain(
        f"{folder}: this checkpoint could not be written ({why}); those before it are kept: make room on that disk and "
        "run again to go on from the newest"
    )


def drop(folder: Path) -> None:
    """Delete a checkpoint; a worker that shares the folder may be at it, too."""
    with suppress(OSError):
        (folder / WHOLE).unlink()  # first: what is half deleted is not whole
    shutil.rmtree(folder, ignore_errors=True)


def restore(folder: Path, segment: Segment, updates: Updates) -> None:
    """Put a checkpoint's state into a segment, whatever plan wrote it.

    TryAgain when a file is not what was written, or lacks what the segment needs: then nothing was put anywhere.
    """
    mark = _proven(folder)
    trained = {n for n, p in segment.parameters.items() if p.requires_grad}
    needed = trained | set(segment.buffers)
    found = {n: t for n, t in _tensors(folder, mark, MODEL) if n in needed}
    lacking = sorted(needed - set(found))
    if lacking:
        raise TryAgain(f"{folder}: holds no {lacking[0]} ({len(lacking)} tensor(s) in all); delete it and run again")
    segment.put(found)
    updates.restore(dict(_tensors(folder, mark, OPTIMIZER, trained)))


def trained_tensors(folder: Path) -> Mapping[str, torch.Tensor]:
    """Every parameter and buffer of a checkpoint, by name; TryAgain when a file is not what was written."""
    return dict(_tensors(folder, _proven(folder), MODEL))


def copy_state(found: Found, target: Path) -> Path:
    """Copy a checkpoint's shards and mark, not its commit log: times differ from run to run, state does not."""
    folder, mark = found
    target.mkdir(parents=True, exist_ok=True)
    for name in mark.files:
        shutil.copyfile(folder / name, target / name)
    wire.write(replace(mark, digests={n: mark.digests[n] for n in mark.files}), target / WHOLE)
    return target


def _rounds(work: Path) -> list[tuple[int, Path]]:
    """Folders of checkpoints, whole or not, with the rounds in them."""
    named = [(path.name.removeprefix("round-"), path) for path in (work / CHECKPOINTS).glob("round-*")]
    return [(int(number), path) for number, path in named if number.isdecimal()]


def _proven(folder: Path) -> CheckpointRound:
    mark = wire.read(CheckpointRound, folder / WHOLE)
    bad = first_bad(folder, mark, mark.files)
    if bad:
        raise TryAgain(f"{bad}; run again to go on from the checkpoint before")
    return mark


def _tensors(
    folder: Path, mark: CheckpointRound, prefix: str, only: set[str] | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    for name in mark.files:
        try:
            with safe_open(folder / name, framework="pt") as file:
                for key in file.keys():
                    if key.startswith(prefix) and (only is None or key.split(":", 1)[-1] in only):
                        yield key.removeprefix(prefix), file.get_tensor(key)
        except (OSError, SafetensorError) as error:
            raise TryAgain(f"{folder / name}: cannot be read ({error}); run again") from None
