"""Construction of a problem of kind split validates it: any fault is one sentence that names it."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetune.contracts import json_io
from fleetune.errors import Refused
from fleetune.solving.split.instance import Instance
from fleetune.solving.split.problem import MATRICES, MAX_TIME, Problem
from tests.support.solving.split.problems import random_problem, scenario_problem, tiny_problem

GOOD = json_io.dump(random_problem(1, 3, 2, preemptive=True))
NAN, INFINITE = float("nan"), float("inf")
Path = tuple[str | int, ...]


def changed(path: Path, value: Any) -> dict[str, Any]:
    """Return the valid problem with one value replaced."""
    plain = copy.deepcopy(GOOD)
    inner: Any = plain
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return plain


def refusal(plain: Any) -> str:
    """Return the message of the refusal."""
    with pytest.raises(Refused) as caught:
        json_io.load(Problem, plain, "p.json")
    return str(caught.value)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("release",), [], "release: 0 rows for 2 helpers; give one for each, in their order"),
        (("release",), [[1, 1, 1]], "release: 1 row for 2 helpers"),
        (("release", 1), [1, 1], "release of helper 1: 2 numbers for 3 clients"),
        (("release", 1), [1, 1, 1, 1], "release of helper 1: 4 numbers for 3 clients"),
        (("release", 1, 2), -1, "release of helper 1, client 2: -1 is below 0; give a whole number of at least 0, or"),
        (("tail", 0, 0), -7, "tail of helper 0, client 0: -7 is below 0"),
        (("turnaround_forward", 0, 1), -7, "turnaround_forward of helper 0, client 1: -7 is below 0"),
        (("turnaround_backward", 0, 1), -7, "turnaround_backward of helper 0, client 1: -7 is below 0"),
        (("forward", 0, 1), 0, "forward of helper 0, client 1: 0 is below 1; a helper's task takes at least one time"),
        (("backward", 0, 1), 0, "backward of helper 0, client 1: 0 is below 1; a helper's task takes at least one"),
        (("forward", 0, 1), -3, "forward of helper 0, client 1: -3 is below 1"),
        (("forward", 0, 1), 1.5, "forward.0.1: must be a whole number (got 1.5)"),
        (("forward", 0, 1), "1", "forward.0.1: must be a whole number (got '1')"),
        (("forward", 0, 1), True, "forward.0.1: must be a whole number (got True)"),
        (("forward", 0, 1), NAN, "forward.0.1: must be a whole number"),
        (("forward", 0, 1), INFINITE, "forward.0.1: must be a whole number"),
        (("forward", 0, 1), 10**30, "forward.0.1: must be a whole number of at most 4611686018427387904"),
        (("forward", 0), None, "forward.0: "),
        (("forward", 0), 3, "forward.0: "),
        (("forward",), None, "forward: "),
        (("helper_memory",), [], "helper_memory: the list is empty; give one number for each helper"),
        (("client_memory",), [], "client_memory: the list is empty; give one number for each client"),
        (("client_memory",), [1.0], "release of helper 0: 3 numbers for 1 client"),
        (("helper_memory", 1), -1, "helper_memory of helper 1: -1.0 is below 0"),
        (("client_memory", 2), -0.5, "client_memory of client 2: -0.5 is below 0"),
        (("client_memory", 2), NAN, "client_memory of client 2: nan is not a finite number"),
        (("client_memory", 2), None, "client_memory.2: must be a number (got None)"),
        (("client_memory", 2), "1", "client_memory.2: must be a number (got '1')"),
        (("client_memory", 2), True, "client_memory.2: must be a number (got True)"),
        (("preemptive",), 1, "preemptive: "),
        (("preemptive",), "yes", "preemptive: "),
        (("preemptive",), None, "preemptive: "),
        (("switch_cost",), [0], "switch_cost: 1 number for 2 helpers"),
        (("switch_cost", 1), -1, "switch_cost of helper 1: -1 is below 0"),
        (("switch_cost", 1), 0.5, "switch_cost.1: must be a whole number (got 0.5)"),
        (("switch_cost", 1), None, "switch_cost.1: must be a whole number (got None)"),
        (("switch_cost",), 0, "switch_cost: "),
        (("colour",), 1, "colour: unknown key; allowed are kind, release, forward"),
        (("kind",), "Split", "kind: must be 'split' (got 'Split')"),
    ],
)
def test_each_fault_is_named(path: Path, value: Any, said: str) -> None:
    """The message names field, helper and client, the given value, and what is allowed."""
    assert refusal(changed(path, value)).startswith("p.json: ")
    assert said in refusal(changed(path, value))
    assert "\n" not in refusal(changed(path, value))


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("forward", 0, 1), 2**60, "forward: all of it comes to "),
        (("release", 0, 1), MAX_TIME, "release: all of it comes to "),
        (("switch_cost", 0), 2**50, "switch_cost: all of it comes to "),
    ],
)
def test_what_cannot_be_counted_is_refused(path: Path, value: Any, said: str) -> None:
    """Times whose sums exceed 64 bits are refused by the field that causes it."""
    assert said in refusal(changed(path, value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("forward", 0, 1), 2.0),
        (("forward", 0, 1), 10**9),
        (("forward", 0, 1), None),
        (("release", 0), [None] * 3),
        (("release", 0, 0), 0),
        (("tail", 0), [0, 0, 0]),
        (("helper_memory", 0), 0),
        (("client_memory", 0), 0.1),
        (("client_memory", 0), 1e300),
        (("switch_cost", 0), 5.0),
        (("preemptive",), False),
    ],
)
def test_what_may_be(path: Path, value: Any) -> None:
    """Zeros, whole floats, missing links, large times and any memory are valid."""
    problem = json_io.load(Problem, changed(path, value), "p.json")
    assert Instance.from_problem(problem).clients == 3


@pytest.mark.parametrize("missing", sorted(set(GOOD) - {"kind"}))
def test_required_keys(missing: str) -> None:
    """A missing key is named."""
    plain = {key: value for key, value in GOOD.items() if key != missing}
    assert refusal(plain) == f"p.json: {missing}: this key is required"


def test_a_problem_is_its_json() -> None:
    """A problem that is written and read again is equal, missing links included."""
    for problem in (tiny_problem(3, preemptive=True, link=0.4), scenario_problem(1, 6, 2)):
        assert json_io.parse(Problem, json_io.text(problem), "p.json") == problem
        assert json_io.parse(Problem, json.dumps(json_io.dump(problem)), "p.json") == problem


def leaves(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the path to every number and text."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*path, key))
    else:
        yield path


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(list(leaves(GOOD))), st.sampled_from([NAN, -3, -0.5, "", {}, [[]], -(10**400)]))
def test_any_field_spoilt_is_refused_by_its_name(path: Path, value: Any) -> None:
    """Any single invalid value of a valid problem is refused by the name of its field."""
    said = refusal(changed(path, value))
    assert str(path[0]) in said
    assert "\n" not in said


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(sorted(GOOD)),
        st.recursive(
            st.none() | st.integers(-2, 3) | st.text(max_size=3) | st.booleans(),
            lambda inner: st.lists(inner, max_size=3),
        ),
    )
)
def test_whole_sections_spoilt_never_leave_a_traceback(spoilt: dict[str, Any]) -> None:
    """Any JSON in any section is either a problem or refused in one sentence."""
    try:
        json_io.load(Problem, GOOD | spoilt, "p.json")
    except Refused as refused:
        assert str(refused).startswith("p.json: ")


def test_a_null_in_any_matrix_unlinks_the_pair() -> None:
    """A null in any matrix removes the link of that pair alone."""
    for field in MATRICES:
        instance = Instance.from_problem(json_io.load(Problem, changed((field, 1, 2), None), "p.json"))
        assert instance.linked.tolist() == [[True, True, True], [True, True, False]]
        assert instance.forward[1, 2] == instance.tail[1, 2] == 0


@pytest.mark.parametrize(
    ("helpers", "clients", "fitting"),
    [
        ((3.0,), (1.0, 2.0), True),
        ((0.3,), (0.1, 0.2), True),  # as decimals; as doubles their sum is above 0.3
        ((2.999999,), (1.0, 2.0), False),
        ((3e12,), (1e12, 2e12), True),
        ((2999999999999.0,), (1e12, 2e12), False),
        ((0.1 + 0.2 + 1 / 3,), (0.1, 0.2, 1 / 3), True),
        ((sum([1 / 3] * 7),), (1 / 3,) * 7, True),
        ((2.333,), (1 / 3,) * 7, False),
        ((1e300,), (1e299,) * 7, True),
        ((6e299,), (1e299,) * 7, False),
        ((1e-300,), (1e-301,) * 7, True),
        ((0.0,), (0.0, 0.0), True),
        ((1e300,), (1.0, 0.0), True),
    ],
)
def test_memory_is_compared_as_it_was_written(
    helpers: tuple[float, ...], clients: tuple[float, ...], fitting: bool
) -> None:
    """Decimals add up as decimals: sums that doubles round still fit, and a real excess of any size does not."""
    row = ((1,) * len(clients),)
    problem = Problem(
        release=row, forward=row, turnaround_forward=row, turnaround_backward=row, backward=row, tail=row,
        helper_memory=helpers, client_memory=clients, preemptive=True, switch_cost=(0,),
    )  # fmt: skip
    instance = Instance.from_problem(problem)
    assert instance.fits(0, list(range(len(clients)))) is fitting
