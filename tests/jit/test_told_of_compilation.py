"""A person who waits is told of a compilation before it begins."""

import numba

from fleetune import jit


def test_only_the_first_compilation_is_told_of_before_it_begins() -> None:
    """What is compiled already says nothing, the next says so once, and outside nothing does."""
    told = list[int]()
    first, second, third = (numba.njit(lambda number, plus=plus: number + plus) for plus in range(3))
    first(1)
    with jit.told_of_compilation(lambda: told.append(len(second.signatures))):
        first(1)
        assert not told
        second(1)
        third(1)
    assert told == [0]
    numba.njit(lambda number: -number)(1)
    assert told == [0]
