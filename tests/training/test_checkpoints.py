"""The coordinator's files: commits and checkpoints count only when they are complete."""

import errno
import json
import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from torch import nn

from fleetune.contracts.metrics import RoundMetrics
from fleetune.contracts.training_request import TrainingRequest
from fleetune.errors import Refused, TryAgain
from fleetune.models.segment import SegmentRunner
from fleetune.recovery.transfers import Item
from fleetune.training import checkpoints
from fleetune.training.checkpoint_saver import CheckpointSaver
from fleetune.training.checkpoints import (
    StoredCheckpoint,
    Tensors,
    checkpoint_folder,
    copy_state,
    drop_incomplete,
    mark_complete,
    stored_rounds,
    trained_tensors,
    write_shard,
)
from fleetune.training.commit_log import CommitLog, read_commits
from fleetune.training.optimizer import NamedOptimizer
from fleetune.training.worker_state import WorkerState
from tests.support.clock import fleets
from tests.support.models.instances import Recorded, recorded
from tests.support.training.model_families import BY_NAME


def metrics(round: int, loss: float = 1.0) -> RoundMetrics:
    """Return the metrics of one round."""
    return RoundMetrics(round=round, loss=loss, gradient_norm=None, learning_rate=0.1, round_s=2.0)


def log_of(path: Path, rounds: int) -> None:
    """Write a log of that many rounds."""
    log = CommitLog(path, [])
    for round in range(rounds):
        log.commit(metrics(round))
    log.close()


def test_a_commit_is_on_disk_when_the_call_returns(tmp_path: Path) -> None:
    """Another reader sees the commit before the log is closed."""
    log = CommitLog(tmp_path / "deep" / "commits.jsonl", [])
    log.commit(metrics(0))
    assert read_commits(tmp_path / "deep" / "commits.jsonl") == [metrics(0)] == log.rounds
    log.close()


@pytest.mark.parametrize("cut", [1, 7, 30])
def test_a_half_written_line_is_not_a_commit(cut: int, tmp_path: Path) -> None:
    """A kill in the middle of a write leaves the rounds before it, and the next attempt appends cleanly."""
    path = tmp_path / "commits.jsonl"
    log_of(path, 3)
    path.write_bytes(path.read_bytes()[:-cut])
    assert read_commits(path) == [metrics(0), metrics(1)]
    log = CommitLog(path, read_commits(path))
    log.commit(metrics(2, loss=5.0))
    log.close()
    assert read_commits(path) == [metrics(0), metrics(1), metrics(2, loss=5.0)]


def test_rounds_after_the_checkpoint_are_discarded(tmp_path: Path) -> None:
    """Rounds after the checkpoint are committed again, since their parameters died with the workers."""
    path = tmp_path / "commits.jsonl"
    log_of(path, 5)
    log = CommitLog(path, [metrics(0), metrics(1), metrics(2)])
    assert [r.round for r in log.rounds] == [0, 1, 2]
    assert read_commits(path) == log.rounds
    log.close()


def test_a_missing_log_has_no_rounds(tmp_path: Path) -> None:
    """A missing log means that nothing was committed yet."""
    assert read_commits(tmp_path / "commits.jsonl") == []


@pytest.mark.parametrize("line", [b"{", bytes(100), b"\xff\xfe"])
def test_a_corrupt_line_within_the_log_is_refused_by_name(line: bytes, tmp_path: Path) -> None:
    """Bug: a zeroed page ended in a UnicodeDecodeError. Only the last line can be half-written."""
    path = tmp_path / "commits.jsonl"
    log_of(path, 2)
    path.write_bytes(line + b"\n" + path.read_bytes())
    with pytest.raises(Refused, match=r"commits\.jsonl: not JSON"):
        read_commits(path)


ADAMW = TrainingRequest(rounds=5)


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """A tiny ResNet, whose buffers must not be lost."""
    return recorded(BY_NAME["resnet"], tmp_path_factory.mktemp("resnet"))


def moved(segment: SegmentRunner) -> NamedOptimizer:
    """Give a segment one optimizer step and other running statistics."""
    updates = NamedOptimizer(segment.parameters, ADAMW)
    for name, parameter in segment.parameters.items():
        parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name)))
    updates.step(0, 1.0)
    for buffer in segment.buffers.values():
        if buffer.is_floating_point():
            buffer.add_(0.5)
    return updates


def saved(
    ready: Recorded, work: Path, cuts: list[int], round: int = 1, kept: Collection[int] = ()
) -> dict[str, torch.Tensor]:
    """Write a complete checkpoint of the segments between cuts, and return its expected state."""
    borders = [0, *cuts, len(ready.units)]
    shards, state = {}, {}
    for index, (a, b) in enumerate(zip(borders, borders[1:], strict=False)):
        segment = ready.segment(ready.units[a:b])
        file, digest = write_shard(checkpoint_folder(work, round), f"segment-{index}", segment, moved(segment))
        shards[file] = digest
        state.update({n: t.detach().clone() for n, t in (*segment.parameters.items(), *segment.buffers.items())})
    mark_complete(work, round, shards, "", kept)
    return state


def newest(work: Path) -> tuple[StoredCheckpoint | None, str]:
    """Return the checkpoint to resume from, and what is reported about the skipped ones."""
    said: list[str] = []
    return checkpoints.newest_complete(work, said.append), "; ".join(said)


def restore(folder: Path, held: SegmentRunner, optimizer: NamedOptimizer) -> None:
    """Read a part of a checkpoint, as a device does that holds it."""
    holder: Any = SimpleNamespace(parameters=held.parameters, buffers=held.buffers, optimizer=optimizer)
    trained = {name for name, parameter in held.parameters.items() if parameter.requires_grad}
    found = StoredCheckpoint.verified(folder).read("", trained | held.buffers.keys())
    items: dict[Item, Tensors] = {Item("", name): tensors for name, tensors in found}
    WorkerState({}, holder, None, None, frozenset()).put(fleets.PLAN, items, lambda wanted: ())


def two(ready: Recorded, work: Path) -> Path:
    """Write checkpoints of rounds 1 and 2, two shards each, and return the newer one's folder."""
    saved(ready, work, [2], round=1)
    saved(ready, work, [2], round=2, kept=(1,))
    return checkpoint_folder(work, 2)


def test_a_checkpoint_loads_under_another_plan(ready: Recorded, tmp_path: Path) -> None:
    """A checkpoint of two segments loads into three: parameters, statistics and the next step agree bit by bit."""
    state = saved(ready, tmp_path, [2])
    found, said = newest(tmp_path)
    assert found is not None and found[1].round == 1 and not said
    tensors = trained_tensors(found[0])
    assert tensors.keys() == state.keys()
    assert all(torch.equal(tensors[name], state[name]) for name in state)
    for units in (ready.units[:1], ready.units[1:4], ready.units[4:]):
        segment, control = ready.segment(units), ready.segment(units)
        updates, expected = NamedOptimizer(segment.parameters, ADAMW), moved(control)
        restore(found[0], segment, updates)
        for held, other in ((segment, updates), (control, expected)):
            for parameter in held.parameters.values():
                parameter.grad = torch.ones_like(parameter)
            other.step(1, 1.0)
        assert all(torch.equal(p, control.parameters[n]) for n, p in segment.parameters.items())
        assert all(torch.equal(b, control.buffers[n]) for n, b in segment.buffers.items())


def _bits(path: Path, change: Callable[[bytearray], None]) -> None:
    content = bytearray(path.read_bytes())
    change(content)
    path.write_bytes(content)


def _flip(content: bytearray) -> None:
    content[-100] ^= 1


def _zero_a_page(content: bytearray) -> None:
    content[2048:3072] = bytes(1024)


def _swap(folder: Path) -> None:
    (folder / "segment-0.safetensors").rename(folder / "aside")
    (folder / "segment-1.safetensors").rename(folder / "segment-0.safetensors")
    (folder / "aside").rename(folder / "segment-1.safetensors")


def _mark(folder: Path, **changes: object) -> None:
    plain = json.loads((folder / "round.json").read_text())
    (folder / "round.json").write_text(json.dumps({**plain, **changes}))


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a flipped bit": (lambda f: _bits(f / "segment-1.safetensors", _flip), "segment-1.safetensors is damaged"),
    "a zeroed page": (lambda f: _bits(f / "segment-0.safetensors", _zero_a_page), "segment-0.safetensors is damaged"),
    "a truncated shard": (
        lambda f: _bits(f / "segment-1.safetensors", lambda c: c.__delitem__(slice(-7, None))),
        "segment-1.safetensors is damaged",
    ),
    "an empty shard": (lambda f: (f / "segment-0.safetensors").write_bytes(b""), "segment-0.safetensors is damaged"),
    "swapped shards": (_swap, "segment-0.safetensors is damaged"),
    "a shard that is gone": (lambda f: (f / "segment-1.safetensors").unlink(), "segment-1.safetensors cannot be read"),
    "a log that is gone": (lambda f: (f / "commits.jsonl").unlink(), "commits.jsonl cannot be read"),
    "a log of another run": (lambda f: (f / "commits.jsonl").write_text("{}\n"), "commits.jsonl is damaged"),
    "an empty mark": (lambda f: (f / "round.json").write_bytes(b""), "round.json: not JSON"),
    "a mark of zeros": (lambda f: (f / "round.json").write_bytes(bytes(200)), "round.json: not JSON"),
    "no mark": (lambda f: (f / "round.json").unlink(), "round.json: cannot be read"),
    "a mark of another round": (lambda f: _mark(f, round=7), "round.json is of round 7"),
    "a mark of an earlier version": (lambda f: _mark(f, digests={}), "has no digest of segment-0.safetensors"),
    "a mark that leads elsewhere": (lambda f: _mark(f, files=["../x"]), "not the name of a file"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_reported_and_the_one_before_is_used(
    damage: str, ready: Recorded, tmp_path: Path
) -> None:
    """Bug: training went on with one flipped bit, and an empty round.json was refused for ever.

    Damaged checkpoints are skipped with a sentence, and the older one is used.
    """
    folder = two(ready, tmp_path)
    harm, sentence = DAMAGES[damage]
    harm(folder)
    found, said = newest(tmp_path)
    assert found is not None and found[0] == checkpoint_folder(tmp_path, 1)
    assert "the checkpoint of round 2 is not used" in said and sentence in said
    harm(checkpoint_folder(tmp_path, 1))
    found, said = newest(tmp_path)
    assert found is None and "the checkpoint of round 1 is not used" in said


@pytest.mark.parametrize("damage", [d for d in DAMAGES if "mark" not in d and "log" not in d])
def test_restore_and_export_verify_the_shards_again(damage: str, ready: Recorded, tmp_path: Path) -> None:
    """A shard may be damaged after it was chosen, or on its way to another machine: no value of it is loaded."""
    folder = two(ready, tmp_path)
    segment = ready.segment(ready.units)
    before = {n: t.detach().clone() for n, t in (*segment.parameters.items(), *segment.buffers.items())}
    DAMAGES[damage][0](folder)
    with pytest.raises(TryAgain, match=r"segment-\d\.safetensors .*; run again to go on from the checkpoint before"):
        restore(folder, segment, NamedOptimizer(segment.parameters, ADAMW))
    assert all(torch.equal(t, before[n]) for n, t in (*segment.parameters.items(), *segment.buffers.items()))
    with pytest.raises(TryAgain, match="run again to go on from the checkpoint before"):
        trained_tensors(folder)


def test_a_shard_damaged_on_its_way_is_never_marked_complete(ready: Recorded, tmp_path: Path) -> None:
    """The writer's digest decides, not one of the received file, and nothing older is deleted before."""
    saved(ready, tmp_path, [], round=1)
    segment = ready.segment(ready.units)
    file, digest = write_shard(checkpoint_folder(tmp_path, 2), "segment-0", segment, moved(segment))
    _bits(checkpoint_folder(tmp_path, 2) / file, _flip)
    with pytest.raises(TryAgain, match=r"segment-0\.safetensors is damaged.*those before it are kept"):
        mark_complete(tmp_path, 2, {file: digest}, "", ())
    found, _ = newest(tmp_path)
    assert found is not None and found[1].round == 1


def test_an_unlisted_shard_is_neither_read_nor_exported(ready: Recorded, tmp_path: Path) -> None:
    """A shard left by another plan's attempt holds older values of the same tensors."""
    state = saved(ready, tmp_path, [], round=1)
    other = ready.segment(ready.units[:2])
    write_shard(checkpoint_folder(tmp_path, 1), "segment-1", other, NamedOptimizer(other.parameters, ADAMW))
    found, said = newest(tmp_path)
    assert found is not None and not said
    copy = copy_state(found, tmp_path / "state")
    assert sorted(p.name for p in copy.iterdir()) == ["round.json", "segment-0.safetensors"]
    for folder in (found[0], copy):
        assert all(torch.equal(t, state[n]) for n, t in trained_tensors(folder).items())


def test_a_checkpoint_that_lacks_a_tensor_is_not_half_restored(ready: Recorded, tmp_path: Path) -> None:
    """Bug: a missing tensor silently kept its initial value."""
    segment = ready.segment(ready.units[:2])
    file, digest = write_shard(
        checkpoint_folder(tmp_path, 1), "segment-0", segment, NamedOptimizer(segment.parameters, ADAMW)
    )
    mark_complete(tmp_path, 1, {file: digest}, "", ())
    whole = ready.segment(ready.units)
    with pytest.raises(TryAgain, match=r"round-000001: holds no \S+ \(\d+ tensor\(s\) in all\)"):
        restore(checkpoint_folder(tmp_path, 1), whole, NamedOptimizer(whole.parameters, ADAMW))


def test_the_two_newest_complete_checkpoints_are_kept(ready: Recorded, tmp_path: Path) -> None:
    """Two checkpoints are kept; skipped ones are deleted once there is a newer one, whatever their round."""
    rounds = (9, 10, 999_999, 1_000_000)
    for before, round in zip((0, *rounds), rounds, strict=False):
        saved(ready, tmp_path, [], round=round, kept=(before,))
        kept = {path.name for path in (tmp_path / "checkpoints").iterdir()}
        assert kept == {checkpoint_folder(tmp_path, r).name for r in (before, round) if r}
        found, _ = newest(tmp_path)
        assert found is not None and found[1].round == round
    saved(ready, tmp_path, [], round=1_000_050, kept=(999_999,))
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"round-999999", "round-1000050"}


def test_everything_is_on_disk_before_an_older_checkpoint_is_dropped(
    ready: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: a power cut left neither checkpoint, since the older one was deleted before the newer one's files were on
    disk. The mark is flushed after its shards, and so is every folder with a new entry.
    """
    saved(ready, tmp_path, [2], round=1)
    saved(ready, tmp_path, [2], round=2, kept=(1,))
    done: list[str] = []
    oldest = checkpoint_folder(tmp_path, 1) / "round.json"
    fsync, rename, rmtree = os.fsync, os.rename, shutil.rmtree

    def recorded_fsync(handle: int) -> None:
        assert oldest.exists()
        done.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        fsync(handle)

    def recorded_rename(source: str, target: str, **folders: int) -> None:
        rename(source, target, **folders)
        done.append(f"=> {target}")

    def recorded_rmtree(folder: Path, ignore_errors: bool = False) -> None:
        done.append(f"drop {folder.name}")
        rmtree(folder, ignore_errors=ignore_errors)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(os, "rename", recorded_rename)
    monkeypatch.setattr(shutil, "rmtree", recorded_rmtree)
    saved(ready, tmp_path, [2], round=3, kept=(2,))
    assert not oldest.exists()
    mark = done.index("=> round.json")
    assert {"segment-0.safetensors", "segment-1.safetensors", "=> commits.jsonl"} <= set(done[:mark])
    assert done[mark + 1 :] == ["round-000003", "checkpoints", tmp_path.name, "drop round-000001"]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), SafetensorError("No space left")])
def test_a_full_disk_loses_only_the_new_checkpoint_and_is_reported(
    error: Exception, ready: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The half written shard is deleted to make room, the older checkpoint stays, and the error names the folder."""
    saved(ready, tmp_path, [], round=1)

    def full(tensors: object, path: Path) -> None:
        path.write_bytes(b"half")
        raise error

    # replaced: a disk that becomes full in the middle of a shard
    monkeypatch.setattr(checkpoints, "save_file", full)
    segment = ready.segment(ready.units)
    with pytest.raises(
        TryAgain, match=r"round-000002: this .* not be written \(No space left.*those before it are kept"
    ):
        write_shard(checkpoint_folder(tmp_path, 2), "segment-0", segment, NamedOptimizer(segment.parameters, ADAMW))
    assert list(checkpoint_folder(tmp_path, 2).iterdir()) == []
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    with pytest.raises(TryAgain, match=r"round-000002: this checkpoint could not be written \(full\)"):
        mark_complete(tmp_path, 2, {}, "", ())
    found, said = newest(tmp_path)
    assert found is not None and found[1].round == 1 and "the checkpoint of round 2 is not used" in said
    drop_incomplete(tmp_path)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["round-000001"], "others take room"


@pytest.mark.parametrize(
    "rounds, every, seconds, took_s, expected",
    [
        (40, None, 0.0, 0.0, [10, 20, 30, 40]),  # the demo
        (400, None, 0.0, 0.0, [50, 100, 150, 200, 250, 300, 350, 400]),
        (3, None, 0.0, 0.0, [1, 2, 3]),
        (9, 3, 1000.0, 0.0, [3, 6, 9]),
        (400, None, 25.0, 0.0, sorted({*range(3, 51, 3), 50, 400})),
        (40, None, 61.0, 10.0, [1, 5, 9, 10, 14, 18, 20, 24, 28, 30, 34, 38, 40]),
    ],
)
def test_checkpoints_are_due_by_rounds_and_by_time(
    rounds: int, every: int | None, seconds: float, took_s: float, expected: list[int], tmp_path: Path
) -> None:
    """Bug: forty rounds had no checkpoint before the last, however long they took.

    The setting is followed exactly, and writing takes at most a twentieth of the time.
    """
    now = [0.0]
    training = TrainingRequest(rounds=rounds, checkpoint_every_rounds=every)
    saver = CheckpointSaver(training, tmp_path, None, clock=lambda: now[0])

    made = []
    for done in range(1, rounds + 1):
        now[0] += seconds
        if saver.due(done):
            saver.prepare(done)
            now[0] += took_s
            saver.complete(done, {}, "")
            made.append(done)
    assert made[: len(expected) - 1] == expected[:-1] and made[-1] == expected[-1]


def test_checkpoints_of_lanes_wait_for_the_next_average(tmp_path: Path) -> None:
    """From a state between two averages only plans with the same lanes can go on, so that of the newest average is kept
    beside the two newest. What was set is followed exactly, and averages that are far apart are not waited for."""
    for every, average, expected in (
        (None, 6, [12, 24, 30, 40]),
        (None, 12, [10, 20, 30, 40]),
        (10, 6, [10, 20, 30, 40]),
        (1, 30, list(range(1, 41))),
    ):
        training = TrainingRequest(rounds=40, checkpoint_every_rounds=every)
        folder = tmp_path / f"{every} {average}"
        saver = CheckpointSaver(training, folder, None, average_every_rounds=average, clock=lambda: 0.0)
        made = []
        for done in range(1, 41):
            if saver.due(done):
                saver.prepare(done)
                saver.complete(done, {}, "")
                made.append(done)
        assert made == expected
        assert sorted(stored_rounds(folder)) == sorted(
            {*made[-2:], *[done for done in made if done % average == 0][-1:]}
        )


def test_checkpoints_of_lanes_do_not_wait_for_ever(tmp_path: Path) -> None:
    """Where rounds are slow, a checkpoint is at most twice as old as it may be."""
    now = [0.0]
    saver = CheckpointSaver(TrainingRequest(rounds=400), tmp_path, None, average_every_rounds=30, clock=lambda: now[0])
    made = []
    for done in range(1, 62):
        now[0] += 50.0
        if saver.due(done):
            saver.prepare(done)
            saver.complete(done, {}, "")
            made.append(done)
    assert made == [3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 33, 36, 39, 42, 45, 48, 51, 54, 57, 60]


def test_frozen_parameters_are_not_in_a_checkpoint(tmp_path: Path) -> None:
    """Frozen parameters stay in the pretrained files; buffers are always saved."""
    made = recorded(BY_NAME["bert"], tmp_path, freeze=(r"bert\.",))
    segment = made.segment(made.units)
    file, digest = write_shard(
        checkpoint_folder(tmp_path, 1), "segment-0", segment, NamedOptimizer(segment.parameters, ADAMW)
    )
    mark_complete(tmp_path, 1, {file: digest}, "", ())
    tensors = trained_tensors(checkpoint_folder(tmp_path, 1))
    assert {n for n in tensors if isinstance(segment.parameters.get(n), nn.Parameter)} == {
        "classifier.weight",
        "classifier.bias",
    }
    assert set(segment.buffers) <= set(tensors)
