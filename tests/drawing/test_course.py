"""The picture of a training that lost devices."""

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from fleetune.contracts.course import Course, LostDevice, Progressed, Recovered
from fleetune.drawing.course import course_chart, course_texts
from fleetune.drawing.report import report
from tests.support.drawing.contents import content

COURSE = Course(
    progress=tuple(Progressed(at_s=float(k), rounds=k) for k in range(1, 30)),
    losses=(
        LostDevice(at_s=12.0, device="nano-1", reason="killed by signal 9"),
        LostDevice(at_s=12.5, device="nano-2", reason="<silent> & gone"),
    ),
    recoveries=(Recovered(from_s=12.0, until_s=14.0, from_round=10, again=2, moved_bytes=14_200_000),),
)
COST = "2 s until the next commit, 14.2 MB moved, 2 rounds and the broken one run again from round 10 on"


def test_losses_and_recoveries_are_drawn() -> None:
    """Each loss has its device's name and reason, each recovery its time, bytes and rounds."""
    chart = course_chart(COURSE)
    root = ET.fromstring(chart)
    texts = [each.text or "" for each in root.iter() if each.tag.endswith("text") or each.tag.endswith("title")]
    cost = "lost: 14.2 MB moved, next commit 2 s later"
    for said in (
        f"nano-1 {cost}",
        f"nano-2 {cost}",
        "after 12.5 s: <silent> & gone",
        f"after 12 s: nano-1, nano-2 lost, {COST}",
    ):
        assert said in texts, texts
    assert course_texts(COURSE) == [f"after 12 s: nano-1, nano-2 lost, {COST}"]


def test_a_device_that_came_back_is_named_and_cost_no_round() -> None:
    """Bug: the round after it stood there as one that was run again, and nobody could tell it from a loss."""
    back = Recovered(from_s=20.0, until_s=21.0, from_round=18, again=0, moved_bytes=7, back=("nano-1",), broken=False)
    gap = Recovered(from_s=24.0, until_s=25.0, from_round=22, again=0, moved_bytes=0)
    assert course_texts(replace(COURSE, recoveries=(back, gap))) == [
        "after 20 s: nano-1 back, 1 s until the next commit, 7 B moved, no round run again, on from round 18",
        "after 24 s: 1 s until the next commit, 0 B moved, the broken round run again",
    ]


def test_rounds_that_are_run_again_have_a_colour_of_their_own() -> None:
    """Up to the round that was done before; the fall back to it has none."""
    rounds = (1, 2, 3, 1, 2, 3, 4)
    course = replace(COURSE, progress=tuple(Progressed(at_s=float(k), rounds=n) for k, n in enumerate(rounds)))
    assert course_chart(course).count("stroke:var(--backward)") == 2


def test_a_training_without_a_loss_has_no_picture() -> None:
    """Nor does its report have the section."""
    assert course_chart(None) == "" and course_texts(None) == []
    assert "What was lost" not in report(content())


def test_a_report_shows_the_course() -> None:
    """With a sentence for each recovery."""

    page = report(replace(content(), course=COURSE))
    assert "What was lost" in page and "14.2 MB moved" in page and "&lt;silent&gt;" in page


@pytest.mark.parametrize("points", [0, 1])
def test_a_training_that_was_lost_at_once_is_drawn(points: int) -> None:
    """Before its first round, or at the moment of its first event."""
    lost = (LostDevice(at_s=0.0, device="", reason="the network"),)
    progress = tuple(Progressed(at_s=0.0, rounds=1) for _ in range(points))
    assert "broken off" in course_chart(Course(progress=progress, losses=lost, recoveries=()))
