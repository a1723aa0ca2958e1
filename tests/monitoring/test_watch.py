"""Beats in, silent devices out."""

import pytest

from fleetune.errors import Refused
from fleetune.monitoring import Watch
from tests.monitoring.hand_clock import HandClock


def test_a_device_without_beats_falls_silent_after_the_limit() -> None:
    """At the limit all is well, past it the device is named with its silence; a beat clears it."""
    clock = HandClock()
    watch = Watch(["a", "b"], 2.0, clock)
    clock.sleep(1.5)
    assert watch.beat("a", 1) == 1.5
    clock.sleep(0.5)
    assert watch.silent() == ()
    clock.sleep(0.25)
    assert watch.silent() == ("b",)
    assert [str(concern) for concern in watch.concerns()] == ["device b: no beat for 2.2 s"]
    watch.beat("b", 0)
    assert watch.silent() == ()


def test_a_stuck_computation_beats_on() -> None:
    """Beats without progress while there is work are a concern of their own; waiting without work is none."""
    clock = HandClock()
    watch = Watch(["hung", "moving", "waiting"], 2.0, clock, stuck_limit_s=5.0)
    for second in range(7):
        watch.beat("hung", 3)
        watch.beat("moving", second)
        watch.beat("waiting", 3, working=False)
        clock.sleep(1.0)
    assert [(each.device, each.kind, each.since_s) for each in watch.concerns()] == [("hung", "stuck", 7.0)]
    assert watch.silent() == ()


def test_progress_is_not_asked_for_without_a_limit() -> None:
    """Without stuck_limit_s a standing counter is no concern."""
    clock = HandClock()
    watch = Watch(["a"], 2.0, clock)
    for _ in range(100):
        clock.sleep(1.0)
        watch.beat("a", 0)
    assert watch.concerns() == ()


def test_devices_come_and_go() -> None:
    """A removed device is no concern, one that is added starts with no silence, a stranger's beat is refused."""
    clock = HandClock()
    watch = Watch(["a"], 2.0, clock)
    clock.sleep(10)
    watch.remove("a")
    watch.remove("a")
    assert (watch.silent(), watch.devices) == ((), ())
    with pytest.raises(Refused, match="'a' is not watched"):
        watch.beat("a", 0)
    watch.add("a")
    clock.sleep(1)
    assert (watch.silent(), watch.devices) == ((), ("a",))


def test_the_next_look_is_when_something_can_have_happened() -> None:
    """Whoever waits knows for how long nothing can fall silent."""
    clock = HandClock()
    watch = Watch(["a", "b"], 2.0, clock)
    clock.sleep(1.5)
    watch.beat("a", 0)
    assert watch.next_check_s() == 0.5
    clock.sleep(3)
    assert watch.next_check_s() == 0.0
    assert Watch([], 2.0, clock).next_check_s() == 2.0


def test_limits_must_be_positive() -> None:
    """A limit of nothing would call every device silent."""
    with pytest.raises(Refused, match="limit_s must be a number above 0"):
        Watch(["a"], 0.0, HandClock())
