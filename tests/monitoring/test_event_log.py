"""Lines of the event log, and its summary."""

from pathlib import Path

import pytest

from fleetune.contracts import json_io
from fleetune.contracts.course import Course, LostDevice, Progressed, Recovered
from fleetune.monitoring import EventLog, EventSummary, Membership, follow
from fleetune.monitoring.course_builder import MOST_POINTS, CourseBuilder
from tests.support.monitoring.hand_clock import HandClock

GOLDEN = """\
{"at_s": 100.0, "event": "started", "rounds": 2}
{"at_s": 100.0, "event": "joined", "device": "a"}
{"at_s": 101.0, "event": "joined", "device": "b"}
{"at_s": 105.0, "event": "beats", "device": "a", "beats": 4, "silence_s": 2.0}
{"at_s": 106.0, "event": "committed", "round": 0}
{"at_s": 103.0, "event": "beats", "device": "b", "beats": 2, "silence_s": 1.0}
{"at_s": 108.0, "event": "lost", "device": "b", "reason": "killed by signal 9"}
{"at_s": 108.0, "event": "joined", "device": "b"}
{"at_s": 109.0, "event": "committed", "round": 1}
{"at_s": 106.0, "event": "beats", "device": "a", "beats": 1, "silence_s": 1.0}
{"at_s": 109.0, "event": "ended", "reason": "done"}
"""
SUMMARY = EventSummary(
    memberships=(
        Membership(device="a", joined_s=0, last_beat_s=6, longest_silence_s=3, ended="done"),
        Membership(device="b", joined_s=1, last_beat_s=3, longest_silence_s=5, ended="killed by signal 9"),
        Membership(device="b", joined_s=8, last_beat_s=8, longest_silence_s=1, ended="done"),
    ),
    rounds_planned=2,
    rounds_committed=2,
    failures=("device b was lost after 8.0 s: killed by signal 9",),
    ended="done",
    course=Course(
        progress=(Progressed(at_s=6, rounds=1), Progressed(at_s=9, rounds=2)),
        losses=(LostDevice(at_s=8, device="b", reason="killed by signal 9"),),
        recoveries=(),
    ),
)


def write_story(path: Path) -> None:
    """Write the log of two devices, of which b falls silent, is killed and returns."""
    clock = HandClock(100.0)
    with EventLog(path, clock) as log:
        log.started(rounds=2)
        log.joined("a")
        clock.sleep(1)
        log.joined("b")
        for second in (1, 2, 3, 5, 6):
            clock.now_s = 100.0 + second
            log.beat("a")
            if second in (2, 3):
                log.beat("b")
        log.committed(0)
        clock.sleep(2)
        log.lost("b", "killed by signal 9")
        log.joined("b")
        clock.sleep(1)
        log.committed(1)
        log.ended()


def read(path: Path) -> EventSummary:
    """Sum up a log whose writer is gone."""
    return follow(path, lambda *_: None, alive=lambda: False)


def test_every_event_is_a_line_and_beats_are_summed_up(tmp_path: Path) -> None:
    """Beats are summed up at intervals and before a loss, and every other event is a line of its own."""
    write_story(tmp_path / "deep" / "events.jsonl")
    assert (tmp_path / "deep" / "events.jsonl").read_text() == GOLDEN


def test_the_summary_has_memberships_rounds_and_failures(tmp_path: Path) -> None:
    """The summary has memberships, silences, rounds and failures, and survives JSON."""
    (tmp_path / "log").write_text(GOLDEN)
    assert read(tmp_path / "log") == SUMMARY
    assert json_io.parse(EventSummary, json_io.text(SUMMARY), "summary") == SUMMARY


def test_lines_are_on_disk_at_once(tmp_path: Path) -> None:
    """A reader sees a commit while the writer still has the file open."""
    with EventLog(tmp_path / "log", HandClock()) as log:
        log.committed(7)
        assert (tmp_path / "log").read_text() == '{"at_s": 0.0, "event": "committed", "round": 7}\n'


@pytest.mark.parametrize("cut", range(1, len(GOLDEN), 37))
def test_a_log_cut_anywhere_is_read_up_to_there(tmp_path: Path, cut: int) -> None:
    """A log cut anywhere loses only its unfinished line, and reading it raises nothing."""
    (tmp_path / "log").write_text(GOLDEN[:cut])
    summary = read(tmp_path / "log")
    assert summary.rounds_committed == GOLDEN[:cut].count('committed", "round": 0}\n') + GOLDEN[:cut].count(" 1}\n")
    assert summary.ended == "its writer was gone before it said how it ended"
    assert summary.failures[-1].startswith("training ended after")
    assert {stay.ended for stay in summary.memberships} <= {summary.ended, "killed by signal 9"}


def test_a_continued_log_closes_the_torn_line(tmp_path: Path) -> None:
    """The next writer starts a new line, the torn one is counted, and earlier memberships end."""
    torn = "".join(GOLDEN.splitlines(keepends=True)[:3]) + '{"at_s": 102'
    (tmp_path / "log").write_text(torn)
    clock = HandClock(110.0)
    with EventLog(tmp_path / "log", clock) as log:
        log.started(rounds=2)
        log.joined("a")
        log.committed(0)
        log.ended("the disk is full")
    summary = read(tmp_path / "log")
    assert summary.unreadable_lines == 1
    assert [(stay.device, stay.ended[:10]) for stay in summary.memberships] == [
        ("a", "its writer"),
        ("b", "its writer"),
        ("a", "the disk i"),
    ]
    assert summary.failures[-1] == "training ended after 10.0 s: the disk is full"


def test_following_a_growing_log_gives_the_whole_summary(tmp_path: Path) -> None:
    """A log that appears late and grows in pieces gives the same summary as a whole one."""
    pieces = [GOLDEN[start : start + 40] for start in range(0, len(GOLDEN), 40)]
    told: list[tuple[float, float]] = []

    def write_more(seconds: float) -> None:
        with (tmp_path / "log").open("a") as log:
            log.write(pieces.pop(0))

    summary = follow(
        tmp_path / "log",
        lambda what, done, total, unit="": told.append((done, total)),
        alive=lambda: True,
        sleep=write_more,
    )
    assert summary == SUMMARY and not pieces
    assert told == [(0, 2), (1, 2), (2, 2)]


def test_lines_written_just_before_the_end_are_read(tmp_path: Path) -> None:
    """Lines written just before the writer ends are read."""

    def goes_after_writing() -> bool:
        (tmp_path / "log").write_text(GOLDEN)
        return False

    assert follow(tmp_path / "log", lambda *_: None, alive=goes_after_writing).rounds_committed == 2


def test_a_missing_log_is_a_failure(tmp_path: Path) -> None:
    """A missing log gives an empty summary with a failure."""
    summary = read(tmp_path / "none")
    assert (summary.memberships, summary.rounds_committed) == ((), 0)
    assert summary.failures == ("training ended after 0.0 s: its writer was gone before it said how it ended",)


def test_a_lost_message_names_no_device(tmp_path: Path) -> None:
    """A lost message, once blamed on an innocent device, ends no membership."""
    clock = HandClock()
    with EventLog(tmp_path / "log", clock) as log:
        log.started(rounds=2)
        log.joined("a")
        clock.sleep(2)
        log.lost("", "link a>b: 1 message was lost")
    summary = read(tmp_path / "log")
    assert summary.failures[0] == "training broke off after 2.0 s: link a>b: 1 message was lost"
    assert [stay.ended for stay in summary.memberships] == [summary.ended]


def course_of(*happened: tuple[float, str, int]) -> Course | None:
    """Return the course of commits, losses of d, and resumptions from a round that ran again 2 rounds and moved 7 B."""
    built = CourseBuilder()
    for at_s, what, rounds in happened:
        if what == "committed":
            built.committed(at_s, rounds)
        elif what == "lost":
            built.lost(at_s, "d", "killed")
        elif what == "started":
            built.started()
        elif what == "joined":
            built.joined("d")
        elif what == "at a border":
            built.resuming(at_s, rounds, 0, 7)
        else:
            built.resuming(at_s, rounds, 2, 7)
    return built.course()


def test_a_course_tells_what_a_loss_cost() -> None:
    """From the loss to the next commit; a second loss meanwhile belongs to the same recovery."""
    assert course_of((1, "committed", 1), (2, "committed", 2)) is None
    happened = [(1.0, "committed", 3), (2.0, "lost", 0), (3.0, "resuming", 1), (4.0, "lost", 0), (5.0, "resuming", 1)]
    found = course_of(*happened, (8.0, "committed", 2), (9.0, "committed", 3))
    assert found is not None
    assert found.recoveries == (Recovered(from_s=2.0, until_s=8.0, from_round=1, again=4, moved_bytes=14),)
    assert [(each.at_s, each.device) for each in found.losses] == [(2.0, "d"), (4.0, "d")]
    assert [(each.at_s, each.rounds) for each in found.progress] == [(1, 3), (3, 1), (5, 1), (8, 2), (9, 3)]


def test_a_device_that_comes_back_breaks_no_round() -> None:
    """It is waited for from the border of a round to the next commit; joining with a start is no return."""
    lost = [(1.0, "joined", 0), (2.0, "committed", 1), (3.0, "lost", 0), (4.0, "resuming", 1), (5.0, "committed", 2)]
    back = [(6.0, "joined", 0), (7.0, "committed", 3), (7.5, "at a border", 3), (9.0, "committed", 4)]
    again = [(10.0, "started", 0), (11.0, "joined", 0), (12.0, "at a border", 4), (13.0, "committed", 5)]
    found = course_of((0.0, "started", 0), *lost, *back, *again)
    assert found is not None
    assert [(each.from_s, each.back, each.broken) for each in found.recoveries] == [
        (3.0, (), True),
        (7.5, ("d",), False),
        (12.0, (), True),
    ]


def test_a_lost_message_is_a_recovery_without_a_loss() -> None:
    """The round is run again by the same devices."""
    found = course_of((1.0, "committed", 1), (2.0, "resuming", 1), (4.0, "committed", 2))
    assert found is not None and found.losses == () and len(found.recoveries) == 1


def test_a_long_course_is_thinned_out_but_for_its_corners() -> None:
    """A picture needs no more points than it is wide; what a loss undid stays visible."""
    commits = [(float(k), "committed", k) for k in range(1, 5001)]
    found = course_of(*commits, (5001.0, "lost", 0), (5002.0, "resuming", 4990), (5003.0, "committed", 4991))
    assert found is not None and len(found.progress) < 2 * MOST_POINTS
    assert [(each.at_s, each.rounds) for each in found.progress[-3:]] == [(5000, 5000), (5002, 4990), (5003, 4991)]
