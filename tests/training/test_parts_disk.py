"""What a coordinator keeps on disk: commits that count only when whole, checkpoints that count only when whole."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from fleetune.contracts.config.training import TrainingRequest
from fleetune.contracts.metrics import RoundMetrics
from fleetune.errors import Refused
from fleetune.models.segment import Segment
from fleetune.training.checkpoints import (
    folder_of,
    mark_whole,
    newest_whole,
    restore,
    trained_tensors,
    write_shard,
)
from fleetune.training.commits import CommitLog, read_commits
from fleetune.training.updates import Updates
from tests.models.instances import Recorded, recorded
from tests.training.families import BY_NAME


def metrics(round: int, loss: float = 1.0) -> RoundMetrics:
    """One round."""
    return RoundMetrics(round=round, loss=loss, gradient_norm=None, learning_rate=0.1, round_s=2.0)


def log_of(path: Path, rounds: int) -> None:
    """A log of that many rounds."""
    log = CommitLog(path, 0)
    for round in range(rounds):
        log.commit(metrics(round))
    log.close()


def test_a_commit_is_on_disk_when_the_call_returns(tmp_path: Path) -> None:
    """Another reader sees it at once, before the log is closed."""
    log = CommitLog(tmp_path / "deep" / "commits.jsonl", 0)
    log.commit(metrics(0))
    assert read_commits(tmp_path / "deep" / "commits.jsonl") == [metrics(0)] == log.rounds
    log.close()


@pytest.mark.parametrize("cut", [1, 7, 30])
def test_a_half_written_line_is_no_commit(cut: int, tmp_path: Path) -> None:
    """A kill in the middle of writing leaves the rounds before it, and the next attempt writes on cleanly."""
    path = tmp_path / "commits.jsonl"
    log_of(path, 3)
    path.write_bytes(path.read_bytes()[:-cut])
    assert read_commits(path) == [metrics(0), metrics(1)]
    log = CommitLog(path, 2)
    log.commit(metrics(2, loss=5.0))
    log.close()
    assert read_commits(path) == [metrics(0), metrics(1), metrics(2, loss=5.0)]


def test_rounds_after_the_checkpoint_are_forgotten(tmp_path: Path) -> None:
    """Their parameters died with the workers: they will be committed again."""
    path = tmp_path / "commits.jsonl"
    log_of(path, 5)
    log = CommitLog(path, 3)
    assert [r.round for r in log.rounds] == [0, 1, 2]
    assert read_commits(path) == log.rounds
    log.close()


def test_a_log_that_is_not_there_has_no_rounds(tmp_path: Path) -> None:
    """Nothing was committed yet."""
    assert read_commits(tmp_path / "commits.jsonl") == []


def test_a_corrupt_line_within_the_log_is_refused_by_name(tmp_path: Path) -> None:
    """Only the last line can be half-written."""
    path = tmp_path / "commits.jsonl"
    log_of(path, 2)
    path.write_text("{\n" + path.read_text())
    with pytest.raises(Refused, match=r"commits\.jsonl: not JSON"):
        read_commits(path)


ADAMW = TrainingRequest(rounds=5)


@pytest.fixture
def ready(tmp_path: Path) -> Recorded:
    """A tiny ResNet: it has buffers that must not be lost."""
    return recorded(BY_NAME["resnet"], tmp_path)


def moved(segment: Segment) -> Updates:
    """Give a segment one step and other running statistics."""
    updates = Updates(segment.parameters, ADAMW)
    for name, parameter in segment.parameters.items():
        parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name)))
    updates.apply(0, 1.0)
    for buffer in segment.buffers.values():
        if buffer.is_floating_point():
            buffer.add_(0.5)
    return updates


def saved(ready: Recorded, work: Path, cuts: list[int], round: int = 1) -> dict[str, torch.Tensor]:
    """A whole checkpoint of segments between cuts; the state it must hold."""
    borders = [0, *cuts, len(ready.units)]
    files, state = [], {}
    for index, (a, b) in enumerate(zip(borders, borders[1:], strict=False)):
        segment = ready.segment(ready.units[a:b])
        updates = moved(segment)
        files.append(write_shard(folder_of(work, round), f"segment-{index}", segment, updates))
        state.update({n: t.detach().clone() for n, t in (*segment.parameters.items(), *segment.buffers.items())})
    mark_whole(work, round, tuple(files))
    return state


def test_a_checkpoint_serves_any_other_plan(ready: Recorded, tmp_path: Path) -> None:
    """Written by two segments, taken up by three: parameters, statistics and the next step, bit by bit."""
    state = saved(ready, tmp_path, [2])
    found = newest_whole(tmp_path)
    assert found is not None and found[1].round == 1
    tensors = trained_tensors(found[0])
    assert tensors.keys() == state.keys()
    assert all(torch.equal(tensors[name], state[name]) for name in state)
    for units in (ready.units[:1], ready.units[1:4], ready.units[4:]):
        segment, control = ready.segment(units), ready.segment(units)
        updates, expected = Updates(segment.parameters, ADAMW), moved(control)
        restore(found[0], segment, updates)
        for held, other in ((segment, updates), (control, expected)):
            for parameter in held.parameters.values():
                parameter.grad = torch.ones_like(parameter)
            other.apply(1, 1.0)
        assert all(torch.equal(p, control.parameters[n]) for n, p in segment.parameters.items())
        assert all(torch.equal(b, control.buffers[n]) for n, b in segment.buffers.items())


def test_a_checkpoint_without_its_mark_is_not_whole(ready: Recorded, tmp_path: Path) -> None:
    """Nor is one of which a file is gone: the newest whole one counts, and with none there is none."""
    assert newest_whole(tmp_path) is None
    saved(ready, tmp_path, [], round=1)
    for round in (2, 3):
        folder_of(tmp_path, round).mkdir()
        (folder_of(tmp_path, round) / "segment-0.safetensors").write_bytes(b"half")
    mark = {"round": 3, "files": ["segment-0.safetensors", "segment-1.safetensors"]}
    (folder_of(tmp_path, 3) / "round.json").write_text(json.dumps(mark))
    found = newest_whole(tmp_path)
    assert found is not None and found[0] == folder_of(tmp_path, 1)
    (folder_of(tmp_path, 1) / "round.json").unlink()
    assert newest_whole(tmp_path) is None


def test_only_the_newest_whole_checkpoint_is_kept(ready: Recorded, tmp_path: Path) -> None:
    """Those before it are dropped, whatever their number."""
    for round in (9, 10, 999_999):
        saved(ready, tmp_path, [], round=round)
        assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [folder_of(tmp_path, round).name]


@pytest.mark.parametrize("content", [b"", b"torn", b"\xff" * 100])
def test_a_corrupt_shard_is_refused_by_name(content: bytes, ready: Recorded, tmp_path: Path) -> None:
    """The file, and what to do about it."""
    saved(ready, tmp_path, [2])
    folder = folder_of(tmp_path, 1)
    (folder / "segment-1.safetensors").write_bytes(content)
    with pytest.raises(Refused, match=r"segment-1\.safetensors: not a readable checkpoint file .*train again"):
        trained_tensors(folder)


def test_frozen_parameters_are_not_in_a_checkpoint(tmp_path: Path) -> None:
    """They are where they came from; buffers are always kept."""
    made = recorded(BY_NAME["bert"], tmp_path, freeze=(r"bert\.",))
    segment = made.segment(made.units)
    write_shard(folder_of(tmp_path, 1), "segment-0", segment, Updates(segment.parameters, ADAMW))
    mark_whole(tmp_path, 1, ("segment-0.safetensors",))
    tensors = trained_tensors(folder_of(tmp_path, 1))
    assert {n for n in tensors if isinstance(segment.parameters.get(n), nn.Parameter)} == {
        "classifier.weight",
        "classifier.bias",
    }
    assert set(segment.buffers) <= set(tensors)
