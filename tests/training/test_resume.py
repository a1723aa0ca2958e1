"""The choice of the checkpoint that training resumes from, among those of several attempts."""

from pathlib import Path

from fleetune.contracts.metrics import RoundMetrics
from fleetune.training.checkpoints import checkpoint_folder, file_digest, mark_complete
from fleetune.training.commit_log import CommitLog
from fleetune.training.resume import adopt_newest, first_round_of_plan


def attempt(work: Path, *rounds: int, content: bytes = b"weights") -> Path:
    """Return a work folder with checkpoints after these rounds."""
    for done in rounds:
        checkpoint_folder(work, done).mkdir(parents=True)
        (checkpoint_folder(work, done) / "segment-0.safetensors").write_bytes(content)
        digest = file_digest(checkpoint_folder(work, done) / "segment-0.safetensors")
        log = CommitLog(
            work / "commits.jsonl",
            [RoundMetrics(round=r, loss=1.0, gradient_norm=None, learning_rate=0.1, round_s=1.0) for r in range(done)],
        )
        log.close()
        mark_complete(work, done, {"segment-0.safetensors": digest}, log.text, None)
    return work


def test_the_newest_of_all_attempts_is_taken_up(tmp_path: Path) -> None:
    """The newest checkpoint becomes this attempt's own, with its commit log and the first round of the plan."""
    own, first, second = (attempt(tmp_path / name, n) for name, n in (("own", 2), ("first", 3), ("second", 5)))
    found = adopt_newest(own, (first, second), lambda text: None)
    assert found is not None and found[1].round == 5 and found[0] == checkpoint_folder(own, 5)
    assert (found[0] / "commits.jsonl").read_text().count("\n") == 5
    assert first_round_of_plan(own) == 5
    again = adopt_newest(own, (first, second), lambda text: None)
    assert again == found
    newer = attempt(tmp_path / "newer", 7)
    assert adopt_newest(newer, (second,), lambda text: None) is not None and first_round_of_plan(newer) == 0


def test_a_damaged_checkpoint_is_passed_over_in_words(tmp_path: Path) -> None:
    """The next best is used; without any checkpoint there is no result."""
    sound, damaged = attempt(tmp_path / "sound", 3), attempt(tmp_path / "damaged", 6)
    (checkpoint_folder(damaged, 6) / "segment-0.safetensors").write_bytes(b"wEights")
    said: list[str] = []
    found = adopt_newest(tmp_path / "own", (damaged, sound, tmp_path / "none"), said.append)
    assert found is not None and found[1].round == 3
    assert len(said) == 1 and said[0].startswith("the checkpoint of round 6 is not used")
    assert adopt_newest(tmp_path / "fresh", (tmp_path / "none",), said.append) is None


def test_the_log_of_events_is_continued_but_not_its_end(tmp_path: Path) -> None:
    """Readers would take the end of the earlier attempt for this one's."""
    earlier = attempt(tmp_path / "earlier", 3)
    (earlier / "events.jsonl").write_text('{"at_s": 1, "event": "started"}\n{"at_s": 2, "event": "ended"}\n{"at')
    adopt_newest(tmp_path / "own", (earlier,), lambda text: None)
    assert (tmp_path / "own" / "events.jsonl").read_text() == '{"at_s": 1, "event": "started"}\n{"at\n'
