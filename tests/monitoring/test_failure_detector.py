"""Suspicions of silent and stuck devices."""

import pytest

from fleetune.errors import Refused
from fleetune.monitoring import FailureDetector, SilenceRule
from tests.support.monitoring.hand_clock import HandClock


def silent(detector: FailureDetector) -> list[str]:
    """Names of the devices that are silent."""
    return [concern.device for concern in detector.suspicions() if concern.kind == "silent"]


def look(detector: FailureDetector, clock: HandClock, seconds: int) -> None:
    """Advance the clock and poll every second."""
    for _ in range(seconds):
        clock.sleep(1.0)
        detector.suspicions()


def test_a_device_without_beats_falls_silent_after_the_limit() -> None:
    """A device is suspected only past the limit, with the length of its silence, and a beat clears it."""
    clock = HandClock()
    detector = FailureDetector(["a", "b"], 8.0, clock)
    clock.sleep(1.5)
    assert detector.beat("a", 1) == 1.5
    for _ in range(4):
        clock.sleep(1.5)
        detector.suspicions()
    clock.sleep(0.5)
    assert silent(detector) == []
    clock.sleep(0.25)
    assert [str(concern) for concern in detector.suspicions()] == ["device b: no beat for 8.2 s"]
    detector.beat("b", 0)
    assert silent(detector) == []


def test_a_device_that_beats_without_progress_is_stuck() -> None:
    """A device that beats without progress while computing is stuck, and one that waits is not."""
    clock = HandClock()
    detector = FailureDetector(["hung", "moving", "waiting"], 4.0, clock, {"computing": 5.0})
    for second in range(7):
        detector.beat("hung", 3, "computing")
        detector.beat("moving", second, "computing")
        detector.beat("waiting", 3, "waiting")
        clock.sleep(1.0)
    concerns = detector.suspicions()
    assert [(each.device, each.kind, each.since_s) for each in concerns] == [("hung", "stuck", 7.0)]
    assert str(concerns[0]) == "device hung: beats, but makes no progress in computing for 7.0 s"


def test_each_activity_has_its_own_limit() -> None:
    """Each activity has its own limit: loading once counted as stuck after the limit of computing.

    The limit is that of the reported activity, and counts anew when the activity changes.
    """
    clock = HandClock()
    detector = FailureDetector(["a"], 4.0, clock, {"loading": 900.0, "computing": 60.0})
    for _ in range(800):
        detector.beat("a", 0, "loading")
        look(detector, clock, 1)
    assert detector.suspicions() == ()
    for _ in range(60):
        detector.beat("a", 0, "computing")
        assert detector.suspicions() == ()
        clock.sleep(1.0)
    detector.beat("a", 0, "computing")
    clock.sleep(1.0)
    assert [(each.kind, each.doing) for each in detector.suspicions()] == [("stuck", "computing")]


def test_an_activity_without_a_limit_is_never_stuck() -> None:
    """A device without a limit for its activity is never stuck."""
    clock = HandClock()
    detector = FailureDetector(["a"], 2.0, clock)
    for _ in range(100):
        clock.sleep(1.0)
        detector.beat("a", 0, "computing")
    assert detector.suspicions() == ()


def test_a_suspended_detector_suspects_no_device() -> None:
    """A frozen coordinator suspects nobody: it once called every device silent while their beats lay unread.

    Time without polling does not count: a device that was silent before is still found, a little later.
    """
    clock = HandClock()
    detector = FailureDetector(["dead", "alive"], 8.0, clock)
    for _ in range(6):
        clock.sleep(1.0)
        detector.beat("alive", 0)
    clock.sleep(100.0)
    assert silent(detector) == []
    detector.beat("alive", 0)
    look(detector, clock, 1)
    assert silent(detector) == ["dead"]
    assert detector.longest_stall_s == 100.0
    look(detector, clock, 8)
    assert silent(detector) == ["dead", "alive"]


def test_a_beat_counts_from_its_arrival() -> None:
    """A beat counts from its arrival, not from when it is read, and never moves time backwards."""
    clock = HandClock()
    detector = FailureDetector(["a"], 8.0, clock)
    look(detector, clock, 6)
    assert detector.beat("a", 0, at_s=1.0) == 1.0
    assert detector.beat("a", 0, at_s=0.5) == 0.0
    look(detector, clock, 3)
    assert silent(detector) == []
    look(detector, clock, 1)
    assert silent(detector) == ["a"]
    assert detector.beat("a", 0, at_s=99.0) == 9.0, "a time to come is now"
    look(detector, clock, 9)
    assert silent(detector) == ["a"]


def test_beats_after_a_stall_do_not_count_twice() -> None:
    """A beat that is read right after a stall does not extend the limit by the length of the stall."""
    clock = HandClock()
    detector = FailureDetector(["a"], 8.0, clock)
    clock.sleep(50.0)
    detector.beat("a", 0, at_s=50.0)
    look(detector, clock, 8)
    assert silent(detector) == []
    look(detector, clock, 1)
    assert silent(detector) == ["a"]


def test_devices_are_added_and_removed() -> None:
    """A removed device is not suspected, an added one starts without silence, an unknown one's beat is refused."""
    clock = HandClock()
    detector = FailureDetector(["a"], 8.0, clock)
    look(detector, clock, 9)
    detector.remove("a")
    detector.remove("a")
    assert (silent(detector), detector.devices) == ([], ())
    with pytest.raises(Refused, match="'a' is not monitored"):
        detector.beat("a", 0)
    detector.add("a")
    look(detector, clock, 1)
    assert (silent(detector), detector.devices) == ([], ("a",))


def test_limits_must_be_positive() -> None:
    """Limits that are not positive are refused."""
    with pytest.raises(Refused, match="limit_s must be a number above 0"):
        FailureDetector(["a"], 0.0, HandClock())
    with pytest.raises(Refused, match="loading must be a number above 0"):
        FailureDetector(["a"], 1.0, HandClock(), {"loading": 0.0})


RULE = SilenceRule(activities=("computing",), gaps=3.0, floor_s=1.0, ceiling_s=5.0, mute_s=20.0)


def beats(detector: FailureDetector, clock: HandClock, *gaps_s: float, doing: str = "computing") -> None:
    """Beat of a after each of these gaps."""
    for number, gap_s in enumerate(gaps_s):
        clock.sleep(gap_s)
        detector.beat("a", number, doing)


def test_the_limit_follows_from_the_longest_gap_between_beats() -> None:
    """At least the floor, at most the ceiling; what is not known yet, or belongs to another activity, is given more."""
    clock = HandClock()
    detector = FailureDetector(["a"], 10.0, clock, rule=RULE)
    assert detector.silence_limit_s("a") == 10.0, "before its first beat"
    beats(detector, clock, 0.25)
    assert detector.silence_limit_s("a") == 5.0, "after one beat"
    beats(detector, clock, *[0.25] * 8)
    assert detector.silence_limit_s("a") == 1.0
    beats(detector, clock, *[0.125] * 4, 0.5)
    assert detector.silence_limit_s("a") == 1.0, "this process polled too seldom to count half a second"
    for _ in range(4):
        clock.sleep(0.125)
        detector.suspicions()
    beats(detector, clock, 0.125)
    assert detector.silence_limit_s("a") == 3 * 0.625
    beats(detector, clock, 0.125, doing="loading")
    assert detector.silence_limit_s("a") == 10.0
    for _ in range(40):
        clock.sleep(0.25)
        detector.suspicions()
    beats(detector, clock, 0.25)
    assert detector.silence_limit_s("a") == 3 * 0.625, "a gap that began while it loaded does not count"


def test_old_gaps_are_forgotten() -> None:
    """One stall of a laptop does not blind the detector for the rest of a run of days."""
    clock = HandClock()
    detector = FailureDetector(["a"], 10.0, clock, rule=RULE)
    beats(detector, clock, 0.25)
    for _ in range(8):
        clock.sleep(0.25)
        detector.suspicions()
    beats(detector, clock, *[0.125] * 20)
    assert detector.silence_limit_s("a") == 5.0
    beats(detector, clock, *[0.125] * 600)
    assert detector.silence_limit_s("a") == 1.0


def test_a_hint_counts_until_the_next_sign_of_life() -> None:
    """A device whose connection has ended is silent at once; a beat or an answer clears it."""
    clock = HandClock()
    detector = FailureDetector(["a"], 10.0, clock, rule=RULE)
    for clear in (lambda: detector.beat("a", 1), lambda: detector.sign_of_life("a")):
        detector.suspect("a")
        assert silent(detector) == ["a"]
        clear()
        assert silent(detector) == []
