"""What held-out samples told while a model trained is drawn beside the losses, and said."""

from dataclasses import replace
from xml.etree import ElementTree

from fleetune.contracts.metrics import RoundScores
from fleetune.drawing import report
from fleetune.drawing.charts import loss_chart
from fleetune.drawing.scores_text import scores_text
from tests.support.drawing.contents import content

SCORES = tuple(RoundScores(rounds=rounds, values={"loss": loss}) for rounds, loss in ((20, 3.0), (40, 1.5), (60, 9.0)))


def test_scores_are_dots_within_the_picture() -> None:
    """A dot for each, also for one above all losses; without scores there is none."""
    rounds = content().training.rounds
    drawn = list(ElementTree.fromstring(loss_chart(rounds, SCORES)).iter())
    dots = [each for each in drawn if each.get("class") == "held-out"]
    assert [float(dot.get("cx", 0)) for dot in dots] == sorted(float(dot.get("cx", 0)) for dot in dots)
    heights = [float(dot.get("cy", 0)) for dot in dots]
    assert heights[2] < heights[0] < heights[1] and heights[2] > 0
    assert "held-out" not in loss_chart(rounds)


def test_the_report_says_which_state_was_taken_and_why_it_ended() -> None:
    """First, last and lowest loss; the state of the result; an early end."""
    made = content()
    training = replace(made.training, scores=SCORES, result_rounds=40, ended_early="ends after round 60 of 90: so")
    first, second, third = scores_text(training)
    assert "scored 3 times: their loss was 3 at first, 9 at last, and lowest, 1.5, after round 40" in first
    assert (second, third) == ("The result is the state after round 40.", "The training ends after round 60 of 90: so.")
    assert "The result is the state after round 40." in report(replace(made, training=training))
    assert scores_text(made.training) == [] and "Held-out samples were" not in report(made)
