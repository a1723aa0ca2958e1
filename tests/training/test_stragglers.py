"""Devices that have become slow, by their paces beside those of the others."""

from fleetune.training.pace import ROUNDS, Stragglers

FORECAST_S = {"a": 1.0, "b": 0.5, "c": 2.0}


def observe(stragglers: Stragglers, rounds: int = ROUNDS, **paces: float) -> list[str]:
    """Observe rounds at these paces; return the devices that became slow, with - before those that are no longer."""
    found = []
    for _ in range(rounds):
        busy_s = {device: FORECAST_S[device] * paces.get(device, 1.0) for device in FORECAST_S}
        found += [("" if each.slow else "-") + each.device for each in stragglers.observe(busy_s)]
    return found


def following() -> Stragglers:
    """Stragglers of a plan that has begun."""
    stragglers = Stragglers()
    stragglers.follow(FORECAST_S)
    return stragglers


def test_a_slow_device_is_told_once_and_again_when_it_is_fast() -> None:
    """It is measured by its own profile, whatever its share of the work is."""
    stragglers = following()
    assert observe(stragglers, rounds=20) == []
    assert observe(stragglers, rounds=20, b=3.0) == ["b"]
    assert observe(stragglers, rounds=20, b=1.7) == [], "between the two limits nothing changes"
    assert observe(stragglers, rounds=20) == ["-b"]
    assert observe(stragglers, rounds=20, b=1.7) == []


def test_one_slow_round_is_nothing() -> None:
    """A virus scanner, a checkpoint, another program for a moment."""
    stragglers = following()
    for _ in range(10):
        assert observe(stragglers, rounds=ROUNDS // 2, b=9.0) == []
        assert observe(stragglers, rounds=ROUNDS // 2 + 1) == []


def test_a_machine_that_is_slow_as_a_whole_has_no_straggler() -> None:
    """All emulated devices of a busy machine slow down together; a profile that is wrong for all is no fault either."""
    assert observe(following(), rounds=20, a=3.0, b=3.0, c=3.0) == []


def test_a_device_that_is_faster_than_its_profile_is_not_slow() -> None:
    """Even if the others are faster still: they may have had a busy hour when they were profiled."""
    assert observe(following(), rounds=20, a=0.2, b=0.9, c=0.2) == []


def test_two_of_three_that_are_slow_are_told() -> None:
    """The median of the others is between the two; the slower one is found first."""
    assert observe(following(), rounds=20, b=9.0, c=3.0) == ["b"]


def test_a_device_alone_has_nothing_to_be_compared_with() -> None:
    """Nor has one before enough rounds of a plan."""
    stragglers = Stragglers()
    stragglers.follow({"a": 1.0, "idle": 0.0})
    assert [stragglers.observe({"a": 9.0}) for _ in range(20)] == [()] * 20
    stragglers = following()
    assert observe(stragglers, rounds=ROUNDS - 1, b=9.0) == []
    stragglers.follow(FORECAST_S)
    assert observe(stragglers, rounds=ROUNDS - 1, b=9.0) == [], "another plan is measured anew"


def test_the_sentence_names_both_paces() -> None:
    """It follows the device's name."""
    stragglers = following()
    for _ in range(ROUNDS):
        changes = stragglers.observe({"a": 1.0, "b": 1.5, "c": 2.0})
    assert str(changes[0]) == (
        "is slow: it computes 3.0 times as long as its profile says, the others 1.0 times, in the last 5 rounds"
    )
