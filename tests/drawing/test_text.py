"""Timelines and plans as text."""

from dataclasses import replace

import pytest

from fleetune.contracts.plan import DeviceOrder, LinkUse
from fleetune.drawing import plan_text, timeline_text
from fleetune.drawing.text import link_text, operations_text, trained_text
from tests.support.clock import fleets, ticks
from tests.support.drawing import hand_made
from tests.support.drawing.contents import content, row
from tests.support.golden import same_as_golden


def test_a_timeline_as_a_grid_drawn_by_hand() -> None:
    """In ten columns of 1 s forwards are digits, backwards letters, the all-reduce is =, and links follow devices."""
    rows = [
        row("a", "main/0F0", 0, 2),
        row("a>b", "main/0F0", 2, 3),
        row("a", "main/0F1", 2, 4),
        row("b", "main/1F0", 3, 5),
        row("b", "main/1B0", 5, 7),
        row("a", "main/0B0", 7, 9),
        row("a", "main/0R0", 9, 10),
    ]
    drawn = timeline_text(rows, width=10).splitlines()[:-1]
    assert drawn == [
        "    0     10 s",
        "  a 0011...aa=",
        "  b ...00aa...",
        "a>b ..0.......",
    ]


def test_what_is_too_short_for_a_column_is_still_seen() -> None:
    """A transfer shorter than a column takes the free column of its start."""
    drawn = timeline_text([row("a", "main/0F0", 0, 10), row("a>b", "main/0F0", 3.2, 3.21)], width=10).splitlines()
    assert drawn[2] == "a>b ...0......"


def test_no_rows_draw_a_sentence() -> None:
    """An empty timeline is drawn as a sentence."""
    assert timeline_text([]) == "(nothing ran)\n"


def test_the_forecast_of_a_hybrid_pipeline_looks_as_it_did() -> None:
    """The timeline of a, then b and c together, with six micro-batches equals the golden file."""
    same_as_golden("timeline-pp-groups.txt", timeline_text(content().forecast.rows, 100))


def test_a_plan_with_an_explicit_order_prints_it() -> None:
    """Segments are printed line by line, followed by the order."""
    plan = replace(fleets.PLAN, order=(DeviceOrder(device="c", actions=("main/1F0", "main/1B0")),))
    assert plan_text(plan) == (
        "by hand: 3 micro-batches of 4 samples\n"
        "  main/0  u0 .. u1 (2 units)  warm-up 3  a 4\n"
        "  main/1  u2 .. u3 (2 units)  warm-up 1  b 3, c 1\n"
        "  order of c: main/1F0 main/1B0\n"
    )


@pytest.mark.parametrize("name", hand_made.PLANS)
def test_a_plan_made_by_hand_reads_as_it_did(name: str) -> None:
    """Hand-made plans equal their golden files."""
    same_as_golden(f"plan-hand-{name}.txt", plan_text(hand_made.PLANS[name]))


def test_one_of_something_is_told_in_the_singular() -> None:
    """Counts of one are singular."""
    plan = ticks.plan({"main": [ticks.segment("u0", "a")]})
    assert plan_text(plan).splitlines()[0] == "by hand: 1 micro-batch of 1 sample"


@pytest.mark.parametrize(
    ("trains", "words"),
    [
        ("", "u0 .. u9 (10 units)"),
        ("u3", "u3 (1 unit)"),
        ("u5 u3 u4", "u3 .. u5 (3 units)"),
        ("u0 u3 u4 u9", "u0, u3 .. u4, u9 (4 units)"),
        ("u0 u2 u4 u6 u8", "u0, u2, u4, ... (5 units)"),
    ],
)
def test_trained_units_are_told_in_stretches(trains: str, words: str) -> None:
    """Trained units are printed as at most three ranges in model order."""
    names = " ".join(f"u{k}" for k in range(10))
    assert trained_text(ticks.segment(names, "a", trains=trains)) == words


@pytest.mark.parametrize(
    ("codec", "ratio", "share", "words"),
    [
        ("dense", 1.0, 1.0, "dense and whole"),
        ("top-k", 100.0, 1.0, "top-k 1/100"),
        ("top-k", 12.5, 0.25, "top-k 1/12.5, 0.25 of the medium"),
        ("dense", 1.0, 1 / 3, "0.3333 of the medium"),
        ("int4-hadamard", 1.0, 0.5, "int4-hadamard, 0.5 of the medium"),
    ],
)
def test_what_a_link_carries_in_words(codec: str, ratio: float, share: float, words: str) -> None:
    """Only non-neutral uses of links are printed."""
    assert link_text(LinkUse(source="a", target="b", codec=codec, ratio=ratio, share=share)) == words


def test_digits_of_gates_stand_in_fives() -> None:
    """Digits are grouped in fives, so that the 13th micro-batch is easy to find."""
    assert operations_text("1123211232113") == "11232 11232 113"


def test_a_timeline_of_lanes_as_a_grid_drawn_by_hand() -> None:
    """With lanes, signs stand for lanes, which the legend names; an update is ^ on its link."""
    rows = [
        row("s>a", "left/0U0", 0, 1),
        row("a", "left/0F0", 1, 3),
        row("a", "right/0F0", 3, 4),
        row("a", "right/0B0", 4, 6),
        row("a", "left/0F1", 6, 8),
        row("a", "left/0B0", 8, 10),
    ]
    assert timeline_text(rows, width=10).splitlines() == [
        "    0     10 s",
        "  a .001bb00aa",
        "s>a ^.........",
        "    0-9 forward of a lane (0 left, 1 right), a-j its backward (a is 0), = all-reduce, ^ update, * other, "
        ". idle",
    ]


def test_many_lanes_are_told_by_their_last_digit() -> None:
    """Twelve lanes are drawn by their last digit, sorted by length of name."""
    rows = [row("a", f"c{k}/0F0", k, k + 1) for k in range(12)]
    drawn = timeline_text(rows, width=12).splitlines()
    assert drawn[1] == "a 012345678901"
    assert drawn[2].startswith("  0-9 forward of a lane (its last digit), a-j its backward")
