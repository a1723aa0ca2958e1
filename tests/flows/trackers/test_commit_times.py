"""Times of rounds come from the event log, while it grows and when it is replaced."""

from pathlib import Path

from fleetune.monitoring import EventLog
from flows.trackers.commit_times import CommitTimes
from flows.trackers.growing_file import GrowingFile


def test_only_intervals_between_two_commits_count(tmp_path: Path) -> None:
    """The first round of an attempt and of a recovery has no duration; a round that is run again has its own."""
    clock = iter((0.0, 10.0, 12.0, 13.0, 14.0, 20.0, 21.5))
    path = tmp_path / "events.jsonl"
    times = CommitTimes(path)
    with EventLog(path, clock=clock.__next__) as log:
        log.started(4)
        log.committed(0)
        log.committed(1)
        times.read()
        assert times.took_s == {1: 2.0}
        log.recovering("device b was lost")
        log.resuming("goes on", 0, 2, 0)
        log.committed(0)
        log.committed(1)
    times.read()
    assert times.at_s == {0: 20.0, 1: 21.5}
    assert times.took_s == {1: 1.5}
    assert times.resumed_from == 0


def test_a_line_that_is_half_written_waits(tmp_path: Path) -> None:
    """Lines are read once they are whole; a file that replaces another one is read from its start."""
    path = tmp_path / "commits.jsonl"
    file = GrowingFile(path)
    assert file.read() == (False, [])
    path.write_bytes(b"one\ntw")
    assert file.read() == (True, [b"one"])
    with path.open("ab") as end:
        end.write(b"o\n")
    assert file.read() == (False, [b"two"])
    (tmp_path / "new").write_bytes(b"one\nthree\n")
    (tmp_path / "new").replace(path)
    assert file.read() == (True, [b"one", b"three"])


def test_a_line_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    """What a killed writer left half, and a later one closed, hides no other line."""
    path = tmp_path / "events.jsonl"
    path.write_text('{"at_s": 1.0, "eve\n{"at_s": 2.0, "event": "committed", "round": 0}\n')
    times = CommitTimes(path)
    times.read()
    assert times.at_s == {0: 2.0}
