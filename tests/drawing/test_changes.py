"""Pictures of what a training has changed: blocks that moved, gates that were chosen anew, and what reports say."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from fleetune.contracts.metrics import RoundMetrics
from fleetune.contracts.plan import FULL
from fleetune.drawing.changes import last_refresh, moves_chart
from fleetune.drawing.report import ReportContent, report
from tests.support.drawing import hand_made
from tests.support.drawing.contents import by_hand

SVG = "{http://www.w3.org/2000/svg}"
DEFT, GATES = hand_made.PLANS["deft"], hand_made.PLANS["gates"]
DEVICES = [lane.segments[0].shares[0].device for lane in DEFT.lanes]
BLOCKS = {lane.name: lane.segments[0].trains for lane in DEFT.lanes}
SWAP = {"block-0": BLOCKS["block-2"], "block-2": BLOCKS["block-0"]}
NEW = {GATES.gates[0].subnet: FULL * 20}


def rounds(**changed: object) -> tuple[RoundMetrics, ...]:
    """Ten rounds; `r3={...}` changes round 3."""
    plain = [RoundMetrics(round=k, loss=1.0, gradient_norm=1.0, learning_rate=1e-3, round_s=0.2) for k in range(10)]
    return tuple(replace(each, **changed.get(f"r{each.round}", {})) for each in plain)  # type: ignore[call-overload]


def trained(name: str, done: tuple[RoundMetrics, ...]) -> ReportContent:
    """A run of a hand-made plan with these rounds."""
    made = by_hand(name)
    assert made.training is not None
    return replace(made, training=replace(made.training, rounds=done))


def test_moved_blocks_keep_their_colour() -> None:
    """After round 3 two lanes change blocks: each has two bars, of 4 and of 6 rounds, in both lanes' colours."""
    drawn = ElementTree.fromstring(moves_chart(DEFT, rounds(r3={"moves": SWAP})))
    bars = [rect for rect in drawn.iter(f"{SVG}rect") if rect.get("class") == "bar"]
    assert len(bars) == len(DEFT.lanes) + 2
    hints = [(rect.findtext(f"{SVG}title") or "", rect.get("style")) for rect in bars]
    assert hints[0] == (f"{DEVICES[0]} trains layer.5 .. head (3 units) in rounds 0 to 3", "fill:var(--s0)")
    assert hints[1] == (f"{DEVICES[0]} trains layer.2 (1 unit) in rounds 4 to 9", "fill:var(--s2)")
    assert float(bars[1].get("width") or 0) / float(bars[0].get("width") or 1) == pytest.approx(1.5, rel=0.02)


def test_what_another_plan_moved_is_not_drawn() -> None:
    """Without a move, and where the units are of no lane of this plan, there is no picture."""
    assert moves_chart(DEFT, rounds()) == moves_chart(DEFT, ()) == ""
    assert moves_chart(DEFT, rounds(r3={"moves": {"block-0": ("embed", "layer.0")}})) == ""


def test_the_last_gates_stand_below_the_first() -> None:
    """Gates that were chosen after round 4, and again after round 7, are in force from round 8 on."""
    done = rounds(r4={"gates": {GATES.gates[1].subnet: FULL * 20}}, r7={"gates": NEW})
    plan = replace(GATES, refresh_gates_every_rounds=1)
    found = last_refresh(plan, done)
    assert found is not None and found[0] == 8
    assert [gate.operations for gate in found[1].gates[:2]] == [FULL * 20] * 2
    assert found[1].gates[2:] == plan.gates[2:] and last_refresh(plan, rounds()) is None


def test_gates_that_no_round_of_this_plan_had_are_not_drawn() -> None:
    """Bugs: the choice after the last round, which nothing ran, was drawn in place of those that trained; and so was
    one of another plan, before this one began."""
    plan = replace(GATES, refresh_gates_every_rounds=1)
    found = last_refresh(plan, rounds(r4={"gates": {GATES.gates[1].subnet: FULL * 20}}, r9={"gates": NEW}))
    assert found is not None and found[0] == 5 and found[1].gates[0] == plan.gates[0]
    assert last_refresh(plan, rounds(r4={"gates": NEW}), gates_from=5) is None
    assert last_refresh(plan, rounds(r4={"gates": NEW}), gates_from=4) is not None


def test_reports_of_lost_devices_say_whose_pictures_they_show() -> None:
    """Bug: after a loss, the report drew the first plan without a word, and lost devices went on training blocks."""
    made = trained("deft", rounds(r3={"moves": SWAP}))
    assert made.training is not None
    page = report(replace(made, training=replace(made.training, replanned_from_round=6)))
    assert "From round 6 on another plan trained" in page and "in rounds 4 to 5" in page
    assert "another plan trained" not in report(made) and "in rounds 4 to 9" in report(made)


def test_what_was_not_measured_is_no_zero() -> None:
    """Bug: where the only rounds of an attempt were those of another plan, or it had none, 0 B were "measured"."""
    made = trained("deft", rounds())
    assert made.training is not None
    nothing = replace(
        made.training, link_bytes=(), peak_memory_bytes=(), timeline=(), revised_from_round=0, resumed_from_round=10
    )
    page = report(replace(made, training=nothing))
    assert "0 B" not in page and "sent in a round" not in page
    assert "a round, measured, of other plans" in page and "training since it was resumed" in page


def test_reports_tell_of_changes() -> None:
    """Moves and new gates have a sentence each; a report of a training without any has neither."""
    moved = report(trained("deft", rounds(r3={"moves": SWAP})))
    assert "Blocks were dealt anew" in moved and "blocks that moved, round by round" in moved
    assert "dealt anew" not in report(trained("deft", rounds()))
    gated = trained("gates", rounds(r7={"gates": NEW}))
    refreshing = replace(gated.plan, plan=replace(gated.plan.plan, refresh_gates_every_rounds=8))
    page = report(replace(gated, plan=refreshing))
    assert "from round 8 on these" in page and page.count("what gates leave of each head") == 2
    assert "chosen anew" not in report(trained("gates", rounds()))


def test_reports_say_what_compression_saves() -> None:
    """Each compressed link has its bytes beside those of a dense one; where none gains, a sentence says so."""
    page = report(by_hand("links"))
    assert page.count(" if dense</td>") == 3, "two of one link, one of the other; the fourth is only shared"
    asked = by_hand("gates")
    told = replace(asked, plan=replace(asked.plan, options={"compression": "auto"}))
    assert "Compression was asked for, and no link has any" in report(told)
    assert "Compression was asked for" not in report(asked) + page


def test_a_round_of_unequal_lanes_has_up_to_so_many_samples() -> None:
    """A lane of fewer micro-batches, or one that rests, has fewer samples than the batch."""
    made = by_hand("lanes", average_every_rounds=5)
    lanes = tuple(replace(lane, rounds=3 if k == 0 else 0) for k, lane in enumerate(made.plan.plan.lanes))
    rests = replace(made, plan=replace(made.plan, plan=replace(made.plan.plan, lanes=lanes)))
    assert "of\nup to 8 samples in each of 4 lanes" in report(rests)
    assert "up to" not in report(made)
