"""A tracker that fails is told of once, and never reaches the run."""

from collections.abc import Sequence

from flows.trackers.follower import Follower
from flows.trackers.points import Point, Unsent

POINTS = [Point(step=0, at_s=0.0, values={"train/loss": 2.0}), Point(step=1, at_s=1.0, values={"train/loss": 1.5})]


class Failing:
    """A tracker that fails until it is repaired."""

    name = "mlflow"

    def __init__(self) -> None:
        self.broken = True
        self.got: list[Point] = []
        self.state = ""

    def update(self, points: Sequence[Point]) -> None:
        """Fail, or take the points."""
        if self.broken:
            raise ConnectionError("connection refused\nby the host")
        self.got = list(points)

    def close(self, state: str) -> None:
        """Note the state."""
        self.state = state


def test_an_error_is_told_once_and_the_points_are_sent_later() -> None:
    """A server that fails, and comes back, is told of once and has every point in the end."""
    tracker, told = Failing(), list[str]()
    follower = Follower(tracker, lambda over: POINTS, told.append)
    follower.update()
    follower.update()
    assert told == ["tracking.mlflow: connection refused; the run goes on, and it is tried again"]
    assert follower.failed
    tracker.broken = False
    follower.end("done")
    assert (tracker.got, tracker.state, follower.failed, len(told)) == (POINTS, "done", False, 1)


def test_what_was_not_written_in_the_end_is_said() -> None:
    """A server that never comes back costs two sentences, and the second says what to do."""
    told: list[str] = []
    follower = Follower(Failing(), lambda over: POINTS, told.append)
    follower.end("failed")
    assert told[1:] == ["tracking.mlflow: not all of this run was written; rerun it to write it again"]


def test_a_run_that_cannot_be_read_ends_nothing() -> None:
    """An artifact that is gone is the tracker's trouble alone."""

    def gone(over: bool) -> list[Point]:
        raise FileNotFoundError("training.json")

    told: list[str] = []
    Follower(Failing(), gone, told.append).update()
    assert told == ["tracking.mlflow: training.json; the run goes on, and it is tried again"]


def test_no_name_of_a_step_is_sent_twice() -> None:
    """Rounds that are run again are not sent again to a place that cannot forget; new names of a known step are."""
    unsent = Unsent()
    assert unsent.of(POINTS) == POINTS
    for point in POINTS:
        unsent.sent(point)
    unsent.all_sent(POINTS)
    again = Point(step=1, at_s=9.0, values={"train/loss": 1.4, "test/loss": 1.3})
    assert unsent.of([POINTS[0], again]) == [Point(step=1, at_s=9.0, values={"test/loss": 1.3})]
