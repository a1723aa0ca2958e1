"""State from which training resumes under any plan: tensors by name, never by device or segment.

    checkpoints/round-000050/SEGMENT.safetensors ...   parameters, buffers and optimizer state, each by name; of
                                                       several lanes without a collector LANE@SEGMENT.safetensors
    checkpoints/round-000050/feedback-DEVICE.safetensors  what messages of links with error feedback have lost so far
    checkpoints/round-000050/commits.jsonl             the commit log of the rounds in the checkpoint
    checkpoints/round-000050/round.json                size and digest of each of these files; written last
    saving/DEVICE/round-000050/...                     a device's shards until the coordinator takes them from there

Each group's leader, a collector, and who keeps what its messages lose write the shards of their devices. A checkpoint
is complete when round.json exists and every file has the recorded digest. The two newest are kept: when
the newest is damaged, training resumes from the one before.
"""

import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fleetune.contracts import json_io
from fleetune.contracts.plan import Plan
from fleetune.contracts.record import record
from fleetune.errors import FleetuneError, Refused, TryAgain
from fleetune.exposed_folders import remove
from fleetune.filesystem import file_digest, free_space, sync, write_durably
from fleetune.models.device_memory import on_host
from fleetune.program import seats_of
from fleetune.recovery.holdings import Restoration
from fleetune.training.optimizer import NamedOptimizer

CHECKPOINTS, SAVING = "checkpoints", "saving"
MARK, COMMITS = "round.json", "commits.jsonl"
MODEL, OPTIMIZER, FEEDBACK = "model|", "optimizer|", "feedback|"  # '|' appears in no parameter name
RESIDUALS = "feedback-"
LANE_MARK = "@"
"""Stands behind the lane in the name of a shard; it appears in no name of a lane."""
SAVE = "save"
"""Kind of the message that asks a worker for its shard while a round runs."""
SAVING_S = 600.0
SAVING_AT_STOP_S = 20.0
"""Longest wait for the last checkpoint of a training that was told to end."""


Tensors = Mapping[str, torch.Tensor]
"""Tensors by the keys of a checkpoint."""


def name_of(key: str) -> str:
    """Return the name of the parameter or buffer that a tensor's key is about."""
    return key.split("|", 1)[1].split(":", 1)[-1]


@record
class FileDigest:
    """Size and digest that a file must have."""

    bytes: int
    sha256: str

    @staticmethod
    def of(path: Path) -> "FileDigest":
        """Return the current size and digest of a file."""
        return FileDigest(bytes=path.stat().st_size, sha256=file_digest(path))


@record
class CheckpointMark:
    """Content of round.json, which marks a checkpoint as complete."""

    round: int
    """Number of rounds in the checkpoint."""
    files: tuple[str, ...]
    """Names of its shards."""
    digests: dict[str, FileDigest] = field(default_factory=dict)
    """Digests of every shard and of the commit log. Checkpoints of earlier versions have none and are not used."""

    def __post_init__(self) -> None:
        for name in (*self.files, *self.digests):
            if name in ("", "..") or Path(name).name != name:
                raise Refused(f"checkpoint: {name!r} is not the name of a file in its folder")


class StoredCheckpoint(NamedTuple):
    """A complete checkpoint on disk."""

    folder: Path
    mark: CheckpointMark

    @staticmethod
    def verified(folder: Path) -> "StoredCheckpoint":
        """Return a checkpoint whose files have their digests; TryAgain if one is damaged."""
        mark = json_io.read(CheckpointMark, folder / MARK)
        bad = first_damaged(folder, mark, mark.files)
        if bad:
            raise TryAgain(f"{bad}; run again to go on from the checkpoint before")
        return StoredCheckpoint(folder, mark)

    def files_of(self, lane: str) -> tuple[str, ...]:
        """Return the shards of one lane, or of the first one if it has none, and those of no lane."""
        names = self.mark.files
        lanes = list(dict.fromkeys(name.split(LANE_MARK)[0] for name in names if LANE_MARK in name))
        chosen = lane if lane in lanes else next(iter(lanes), "")
        return tuple(name for name in names if LANE_MARK not in name or name.split(LANE_MARK)[0] == chosen)

    def read(self, lane: str, names: Collection[str]) -> Iterator[tuple[str, Tensors]]:
        """Yield the name and tensors of parameters and buffers of a lane, one after another, whatever plan wrote them.

        TryAgain if a file cannot be read or a tensor is missing.
        """
        lacking = set(names)
        for path in (self.folder / name for name in self.files_of(lane)):
            with _opened(path) as file:
                keys = defaultdict[str, list[str]](list)
                for key in file.keys():
                    if name_of(key) in lacking:
                        keys[name_of(key)].append(key)
                for name, its_keys in keys.items():
                    yield name, {key: file.get_tensor(key) for key in its_keys}
            lacking -= keys.keys()
        if lacking:
            said = f"holds no {min(lacking)} ({len(lacking)} tensor(s) in all); delete it and run again"
            raise TryAgain(f"{self.folder}: {said}")

    def residuals(self, device: str) -> dict[str, torch.Tensor]:
        """Return what the messages of a device had lost; nothing if its plan had no error feedback there."""
        own = f"{RESIDUALS}{device}.safetensors"
        return dict(_tensors(self.folder, [name for name in self.mark.files if name == own], FEEDBACK))


def write_text(text: str, path: Path) -> None:
    """Write a text file atomically and durably; creates its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(text.encode(), path)


def checkpoint_folder(work: Path, round: int) -> Path:
    """Return the folder of the state after `round` rounds."""
    return work / CHECKPOINTS / f"round-{round:06d}"


def saving_folder(work: Path, device: str, round: int) -> Path:
    """Return where a device writes its shards of the state after `round` rounds; in a container it sees no others."""
    return work / SAVING / device / f"round-{round:06d}"


def complete_of(work: Path, round: int) -> StoredCheckpoint:
    """Return the checkpoint of the state after `round` rounds; TryAgain if it is damaged."""
    return StoredCheckpoint.verified(checkpoint_folder(work, round))


def is_whole(work: Path, round: int) -> bool:
    """Return whether the checkpoint of the state after `round` rounds is there and undamaged."""
    try:
        complete_of(work, round)
    except FleetuneError:
        return False
    return True


def newest_complete(
    work: Path, note: Callable[[str], None], unfit: Callable[[CheckpointMark], str] = lambda mark: ""
) -> StoredCheckpoint | None:
    """Return the newest undamaged checkpoint; `note` receives a sentence for each newer one that is skipped.

    unfit: why a checkpoint cannot be used that is whole; '' if it can.
    """
    for round, folder in sorted(_rounds(work), reverse=True):
        try:
            mark = json_io.read(CheckpointMark, folder / MARK)
        except Refused as error:
            note(f"the checkpoint of round {round} is not used ({error})")
            continue
        bad = first_damaged(folder, mark, (*mark.files, COMMITS))
        if mark.round != round:
            bad = f"{folder / MARK} is of round {mark.round}"
        if not (bad := bad or unfit(mark)):
            return StoredCheckpoint(folder, mark)
        note(f"the checkpoint of round {round} is not used ({bad})")
    return None


def first_damaged(folder: Path, mark: CheckpointMark, names: Iterable[str]) -> str:
    """Describe the first file of a checkpoint that is missing or differs from its digest; '' if there is none."""
    for name in names:
        path = folder / name
        if name not in mark.digests:
            return f"{folder / MARK} has no digest of {name}, so damage cannot be detected"
        try:
            found = FileDigest.of(path)
        except OSError as error:
            return f"{path} cannot be read: {error.strerror}"
        if found != mark.digests[name]:
            return f"{path} is damaged: its content differs from what was written"
    return ""


class StateHolder(Protocol):
    """What a shard holds the state of: a segment, or a collector."""

    @property
    def parameters(self) -> Mapping[str, torch.Tensor]:
        """Parameters by name; those that are trained are stored."""

    @property
    def buffers(self) -> Mapping[str, torch.Tensor]:
        """Buffers by name."""


@dataclass(frozen=True, slots=True)
class Buffers:
    """A holder whose parameters another one stores."""

    buffers: Mapping[str, torch.Tensor]
    parameters: Mapping[str, torch.Tensor] = field(default_factory=dict)


def write_shard(folder: Path, name: str, held: StateHolder, optimizer: NamedOptimizer) -> tuple[str, FileDigest]:
    """Write trained parameters, buffers and optimizer state; return the file's name and digest.

    TryAgain if it cannot be written.
    """
    trained = {n: p.detach() for n, p in held.parameters.items() if p.requires_grad}
    tensors = {MODEL + n: t for n, t in {**trained, **held.buffers}.items()}
    tensors.update({OPTIMIZER + n: t for n, t in optimizer.state().items()})
    return _write_tensors(folder, name, tensors)


def write_residuals(folder: Path, device: str, residuals: Mapping[str, torch.Tensor]) -> tuple[str, FileDigest]:
    """Write what the messages of a device have lost so far; return the file's name and digest. TryAgain as above."""
    return _write_tensors(folder, RESIDUALS + device, {FEEDBACK + key: t for key, t in residuals.items()})


def _write_tensors(folder: Path, name: str, tensors: Mapping[str, torch.Tensor]) -> tuple[str, FileDigest]:
    file = f"{name}.safetensors"
    part = folder / f"{file}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(on_host(tensors), part)
        sync(part)
        digest = FileDigest.of(part)
        part.replace(folder / file)
        sync(folder)
    except (OSError, SafetensorError) as error:
        part.unlink(missing_ok=True)  # its space may be what the disk lacks
        raise write_error(folder, error) from None
    return file, digest


def shard_name(lane: str, segment: int, lanes: int) -> str:
    """Return the name of a segment's shard, without its suffix; a single lane is not named."""
    return f"segment-{segment}" if lanes == 1 else f"{lane}{LANE_MARK}segment-{segment}"


def mark_complete(
    work: Path, round: int, shards: Mapping[str, FileDigest], commits: str, kept: Collection[int]
) -> StoredCheckpoint:
    """Mark a checkpoint as complete, then delete all others except those of the rounds `kept`.

    shards: digests of the files, computed by their writers. commits: the lines of the commit log.
    Everything is on disk before anything is deleted. TryAgain if a shard differs from its digest or the disk does not
    accept a file; then nothing is deleted.
    """
    folder = checkpoint_folder(work, round)
    try:
        write_text(commits, folder / COMMITS)
        shards = dict(sorted(shards.items()))  # devices report them in any order
        digests = {**shards, COMMITS: FileDigest.of(folder / COMMITS)}
        mark = CheckpointMark(round=round, files=tuple(shards), digests=digests)
        bad = first_damaged(folder, mark, digests)
        if bad:
            raise TryAgain(f"{bad}; those before it are kept")
        for name in shards:  # shards fetched from another machine may not be on disk yet
            sync(folder / name)
        write_text(json_io.text(mark), folder / MARK)
        for each in (work / CHECKPOINTS, work):
            sync(each)
    except OSError as error:
        raise write_error(folder, error) from None
    for number, other in _rounds(work):
        if number != round and number not in kept:
            delete_checkpoint(other)
    return StoredCheckpoint(folder, mark)


def write_error(folder: Path, error: Exception) -> TryAgain:
    """Return the error for a checkpoint that could not be written."""
    why = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return TryAgain(
        f"{folder}: this checkpoint could not be written ({why}); those before it are kept: make room on that disk "
        f"({free_space(folder)}) and run again to go on from the newest"
    )


def delete_checkpoint(folder: Path) -> None:
    """Delete a checkpoint; a worker that shares the folder may delete it at the same time."""
    with suppress(OSError):
        (folder / MARK).unlink()  # first, so that a half deleted checkpoint is not complete
    shutil.rmtree(folder, ignore_errors=True)


def drop_incomplete(work: Path) -> None:
    """Delete what is there of checkpoints that were not completed: nothing resumes from them, and they take room."""
    remove(work / SAVING)
    for _, folder in _rounds(work):
        if not (folder / MARK).exists():
            delete_checkpoint(folder)


def copy_checkpoint(found: StoredCheckpoint, work: Path) -> Path:
    """Copy a checkpoint into another work folder, by hard links where the disk allows them, and return its folder."""
    folder, mark = found
    target, part = checkpoint_folder(work, mark.round), work / CHECKPOINTS / "adopted.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    for name in dict.fromkeys((*mark.files, *mark.digests, MARK)):
        try:
            os.link(folder / name, part / name)
        except OSError:
            shutil.copyfile(folder / name, part / name)
        sync(part / name)
    sync(part)
    delete_checkpoint(target)
    part.rename(target)
    sync(target.parent)
    return target


def adopt(work: Path, earlier: Path, round: int) -> None:
    """Copy the checkpoint of a round from another work folder, if it is whole there."""
    with suppress(FleetuneError):
        copy_checkpoint(complete_of(earlier, round), work)


def trained_tensors(folder: Path) -> Mapping[str, torch.Tensor]:
    """Return every parameter and buffer of a checkpoint by name; TryAgain if a file is damaged.

    After the last round all lanes hold the same.
    """
    found = StoredCheckpoint.verified(folder)
    return dict(_tensors(folder, found.files_of(""), MODEL))


def copy_state(found: StoredCheckpoint, target: Path) -> Path:
    """Copy a checkpoint's shards and mark, without the commit log, whose times would make equal states differ."""
    folder, mark = found
    target.mkdir(parents=True, exist_ok=True)
    for name in mark.files:
        shutil.copyfile(folder / name, target / name)
    json_io.write(replace(mark, digests={n: mark.digests[n] for n in mark.files}), target / MARK)
    return target


def _rounds(work: Path) -> list[tuple[int, Path]]:
    """Return (number of rounds, folder) of every checkpoint, complete or not."""
    named = [(path.name.removeprefix("round-"), path) for path in (work / CHECKPOINTS).glob("round-*")]
    return [(int(number), path) for number, path in named if number.isdecimal()]


def stored_rounds(work: Path) -> list[int]:
    """Return after how many rounds the checkpoints of a work folder are, complete or not."""
    return [number for number, _ in _rounds(work)]


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (OSError, SafetensorError) as error:
        raise TryAgain(f"{path}: cannot be read ({error}); run again") from None


def _tensors(folder: Path, files: Sequence[str], prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
    for name in files:
        with _opened(folder / name) as file:
            for key in file.keys():
                if key.startswith(prefix):
                    yield key.removeprefix(prefix), file.get_tensor(key)


def foreign_lanes(mark: CheckpointMark, lanes: Collection[str], some: bool = False) -> str:
    """Describe lanes that differ, as between two averages, and that are not all of the plan that goes on, or, if `some`
    suffice, none of them; '' if they are."""
    shards: dict[str, dict[str, FileDigest]] = {}
    for name in (name for name in mark.files if LANE_MARK in name):
        lane, _, segment = name.partition(LANE_MARK)
        shards.setdefault(lane, {})[segment] = mark.digests[name]
    alike = all(each == next(iter(shards.values())) for each in shards.values())
    if alike or not lanes or (set(lanes) & shards.keys() if some else set(lanes) <= shards.keys()):
        return ""
    held = ", ".join(sorted(shards))
    return f"it holds models of {held} that were not averaged yet, and this plan trains {', '.join(lanes)}"


def folder_of(found: Restoration, work: Path, lanes: Collection[str]) -> str | None:
    """Return the checkpoint that devices read what no other one can send; None where none is read.

    TryAgain if a lane would begin with another one's state: the next attempt goes on from the newest average.
    """
    if not found.reads_checkpoint:
        return None
    folder = checkpoint_folder(work, found.version.rounds)
    if why := foreign_lanes(json_io.read(CheckpointMark, folder / MARK), lanes):
        raise TryAgain(f"the checkpoint of round {found.version.rounds}: {why}; run it again to go on from an average")
    return str(folder)


def savers_of(plan: Plan) -> tuple[str, ...]:
    """Return the devices that write shards of checkpoints: each group's leader, the collector, and those that keep what
    messages lose.

    With a collector, parameters are the same in all lanes: only the first lane's leaders write, their buffers.
    """
    lanes = plan.lanes[:1] if plan.collector else plan.lanes
    leaders = [seat.device for seat in seats_of(plan) if seat.is_leader and seat.lane in lanes]
    fed = [name for name in plan.devices if keeps_residuals(plan, name)]
    return tuple(dict.fromkeys([*leaders, *([plan.collector] if plan.collector else []), *fed]))


def keeps_residuals(plan: Plan, device: str) -> bool:
    """Return whether a device has a link with error feedback to another one."""
    return any(use.feedback and use.source == device for use in plan.links)
