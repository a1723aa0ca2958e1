"""Construction of a problem of kind d2ft validates it: any fault is one sentence that names it."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path as File
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetune import solving
from fleetune.contracts import json_io
from fleetune.errors import Refused
from fleetune.solving.d2ft.methods import SUMMARIES
from fleetune.solving.d2ft.problem import Problem, Solution
from tests.support.solving.d2ft.instances import drawn, tiny
from tests.support.solving.d2ft.reference import check

GOOD = json_io.dump(drawn(forward_weight=0.5))
NAN, INFINITE = float("nan"), float("inf")
EXAMPLE = File(__file__).parents[3] / "configs/problems/d2ft-four-heads.json"
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
        (("backward_scores",), [], "backward_scores: the list is empty; give at least one subnet with one micro-batch"),
        (("backward_scores",), [[], [], []], "backward_scores: the list is empty; give at least one subnet"),
        (("backward_scores",), [[1.0] * 4] * 2, "forward_scores: 3 rows for 2 subnets"),
        (("backward_scores", 1), [1.0], "backward_scores of subnet 1: 1 number for 4 micro-batch"),
        (("forward_scores", 2), [1.0] * 5, "forward_scores of subnet 2: 5 numbers for 4 micro-batch"),
        (("forward_scores", 2, 3), -0.5, "forward_scores of subnet 2, micro-batch 3: -0.5 is below 0"),
        (("backward_scores", 0, 1), NAN, "backward_scores of subnet 0, micro-batch 1: nan is not a finite number"),
        (("backward_scores", 0, 1), INFINITE, "subnet 0, micro-batch 1: inf is not a finite number"),
        (("backward_scores", 0, 1), None, "backward_scores.0.1: must be a number (got None)"),
        (("backward_scores", 0, 1), "1", "backward_scores.0.1: must be a number (got '1')"),
        (("backward_scores", 0, 1), True, "backward_scores.0.1: must be a number (got True)"),
        (("backward_scores", 0), [1e308] * 4, "backward_scores: their sum, weighted, is above the largest number"),
        (("forward_weight",), 1e308, "forward_scores: their sum, weighted, is above the largest number"),
        (("forward_weight",), -1, "forward_weight: -1.0 is below 0"),
        (("forward_weight",), NAN, "forward_weight: nan is not a finite number"),
        (("forward_weight",), [1.0], "forward_weight: must be a number (got [1.0])"),
        (("forward_cost",), [0.1, 0.2], "forward_cost: 2 numbers for 3 subnets"),
        (("forward_cost",), [[0.1] * 4] * 3, "forward_cost.0: must be a number"),
        (("forward_cost", 0), -0.1, "forward_cost of subnet 0: -0.1 is below 0"),
        (("backward_cost", 2), INFINITE, "backward_cost of subnet 2: inf is not a finite number"),
        (("full_capacity", 1), -1, "full_capacity of subnet 1: -1.0 is below 0"),
        (("forward_capacity",), [], "forward_capacity: 0 numbers for 3 subnets"),
        (("capacity",), 3.0, "capacity: must be a list, [...] (got 3.0)"),
        (("capacity",), [1.0], "capacity: 1 number for 3 subnets"),
        (("capacity", 1), -2, "capacity of subnet 1: -2.0 is below 0"),
        (("weight_magnitude", 1), -2, "weight_magnitude of subnet 1: -2.0 is below 0"),
        (("gradient_magnitude",), [1.0] * 4, "gradient_magnitude: 4 numbers for 3 subnets"),
        (("lambda",), 1, "lambda: unknown key; allowed are kind, backward_scores, forward_scores, forward_cost"),
        (("kind",), "D2FT", "kind: must be 'd2ft' (got 'D2FT')"),
    ],
)
def test_each_fault_is_named(path: Path, value: Any, said: str) -> None:
    """The message names field, subnet and micro-batch, the given value, and what is allowed."""
    assert refusal(changed(path, value)).startswith("p.json: ")
    assert said in refusal(changed(path, value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("capacity",), None),
        (("forward_weight",), None),
        (("forward_weight",), 0),
        (("forward_cost", 0), 0),
        (("backward_scores", 0), [0, 0, 0, 0]),
        (("full_capacity", 0), 1e300),
        (("forward_cost", 0), 5e-324),
        (("forward_capacity", 0), -0.0),
    ],
)
def test_what_may_be(path: Path, value: Any) -> None:
    """Zeros, whole numbers, null for what is optional, and costs of any size can be planned with, by every method."""
    problem = json_io.load(Problem, changed(path, value), "p.json")
    for method in SUMMARIES:
        if method == "joint" and problem.capacity is None:
            continue
        check(problem, solving.solve(solving.kinds()["d2ft"], problem, method=method))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "missing",
    ["backward_scores", "forward_scores", "forward_cost", "backward_cost", "full_capacity", "forward_capacity"],
)
def test_required_keys(missing: str) -> None:
    """A missing key is named."""
    plain = {key: value for key, value in GOOD.items() if key != missing}
    assert refusal(plain) == f"p.json: {missing}: this key is required"


def test_a_problem_is_its_json() -> None:
    """A problem that is written and read again is equal; optional keys may be omitted."""
    problem = tiny(3)
    assert json_io.parse(Problem, json_io.text(problem), "p.json") == problem


def leaves(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the path to every number and text."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*path, key))
    else:
        yield path


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(list(leaves(GOOD))), st.sampled_from([NAN, -3, -0.5, "", {}, [[]], True, -(10**400)]))
def test_any_field_spoilt_is_refused_by_its_name(path: Path, value: Any) -> None:
    """Any single invalid value of a valid problem is refused by the name of its field."""
    said = refusal(changed(path, value))
    assert str(path[0]) in said
    assert "\n" not in said


def test_the_example_solves_by_every_method() -> None:
    """Every method solves the example of configs/problems, and the plan reads back as it was."""
    kind, problem = solving.read(EXAMPLE.read_bytes(), "example", solving.kinds())
    for method in SUMMARIES:
        plan = solving.solve(kind, problem, method=method)
        assert isinstance(plan, Solution)
        check(problem, plan)
        plain = json.loads(json.dumps(solving.document(plan)))
        assert json_io.load(Solution, plain, "plan") == plan
    assert list(plain)[:4] == ["kind", "method", "feasible", "reason"]
    assert plain["upper_bound"] is None


def test_kind_is_registered() -> None:
    """Through the common interface: bilevel is the default, joint names the missing key, and plans have a summary."""
    kind = solving.kinds()["d2ft"]
    assert next(iter(kind.methods)) == "bilevel"
    plan = solving.solve(kind, drawn())
    assert plan.method == "bilevel"
    assert list(solving.document(plan)) == [
        "kind", "method", "feasible", "objective", "upper_bound", "solve_s", "table", "forward_objective",
        "workload_variance", "untrained_micro_batches",
    ]  # fmt: skip
    assert kind.describe_plan(plan) == "3 subnets x 4 micro-batches: 4 full, 2 forward-only, 6 shortcut, 0 untrained"
    with pytest.raises(Refused, match="capacity: method joint needs this key"):
        solving.solve(kind, drawn(capacity=None), method="joint")
