"""Timelines and plans as text."""

from dataclasses import replace

from fleetune.contracts.plan import DeviceOrder
from fleetune.contracts.timeline import Row
from fleetune.drawing import grid, plan_text
from tests.clock import fleets
from tests.drawing.contents import content
from tests.golden import same_as_golden


def row(device: str, action: str, start_s: float, end_s: float) -> Row:
    """A row of lane main."""
    return Row(device=device, lane="main", action=action, start_s=start_s, end_s=end_s)


def test_a_timeline_as_a_grid_drawn_by_hand() -> None:
    """Ten columns of 1 s: forwards are digits, backwards letters, the all-reduce =, links come after devices."""
    rows = [
        row("a", "main/0F0", 0, 2),
        row("a>b", "main/0F0", 2, 3),
        row("a", "main/0F1", 2, 4),
        row("b", "main/1F0", 3, 5),
        row("b", "main/1B0", 5, 7),
        row("a", "main/0B0", 7, 9),
        row("a", "main/0R0", 9, 10),
    ]
    drawn = grid(rows, width=10).splitlines()[:-1]
    assert drawn == [
        "    0     10 s",
        "  a 0011...aa=",
        "  b ...00aa...",
        "a>b ..0.......",
    ]


def test_what_is_too_short_for_a_column_is_still_seen() -> None:
    """A transfer of a hundredth of a column takes the one where it starts, if nothing else does."""
    drawn = grid([row("a", "main/0F0", 0, 10), row("a>b", "main/0F0", 3.2, 3.21)], width=10).splitlines()
    assert drawn[2] == "a>b ...0......"


def test_no_rows_draw_a_sentence() -> None:
    """Nothing ran is told, not failed at."""
    assert grid([]) == "(nothing ran)\n"


def test_the_forecast_of_a_hybrid_pipeline_looks_as_it_did() -> None:
    """a, then b and c together; six micro-batches."""
    same_as_golden("timeline-pp-groups.txt", grid(content().forecast.rows, 100))


def test_a_plan_with_an_explicit_order_prints_it() -> None:
    """Segments line by line, then the order as it was written."""
    plan = replace(fleets.PLAN, order=(DeviceOrder(device="c", actions=("main/1F0", "main/1B0")),))
    assert plan_text(plan) == (
        "by hand: 3 micro-batches of 4 samples\n"
        "  main/0  u0 .. u1 (2 units)  warm-up 3  a 4\n"
        "  main/1  u2 .. u3 (2 units)  warm-up 1  b 3, c 1\n"
        "  order of c: main/1F0 main/1B0\n"
    )
