"""The common interface to problems of every kind, with a stand-in solver."""

import json
from typing import Any

import pytest

from fleetune import solving
from fleetune.contracts import json_io
from fleetune.errors import Infeasible, Refused
from fleetune.solving.hpp import describe_plan
from fleetune.solving.hpp.problem import Share, Solution, Stage, VirtualWorker
from tests.support.solving.hpp.instances import drawn
from tests.support.solving.stand_in import KIND, METHODS, solution

KNOWN = {"hpp": KIND}


def test_a_problem_is_read_by_its_kind() -> None:
    """The text of a problem gives its kind and the problem itself."""
    kind, problem = solving.read(json_io.text(drawn()), "p.json", KNOWN)
    assert (kind.name, problem) == ("hpp", drawn())


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (b"", "p.json: not JSON ("),
        (b"\xff\xfe{}", "p.json: not JSON ("),
        (b'{"kind": "hpp", "micro_batch": NaN}', "p.json: not JSON (NaN is not a finite number)"),
        (b"[1]", "p.json: value: must be an object, {...} (got [1])"),
        (b"[" * 100_000, "p.json: JSON is nested deeper than 100 levels"),
        (b'{"kind": "hpp", "kind": "deft"}', "p.json: not JSON (key 'kind' is given twice)"),
        (b"{}", "p.json: kind: this key is required; allowed are hpp"),
        (b'{"kind": "magic"}', "p.json: kind is 'magic'; allowed are hpp"),
        (b'{"kind": ["hpp"]}', "p.json: kind is ['hpp']; allowed are hpp"),
        (b'{"kind": "hpp"}', "p.json: micro_batch: this key is required"),
        (b'{"kind": "hpp", "batch": 1}', "p.json: batch: unknown key; allowed are kind, micro_batch, micro_batches"),
    ],
)
def test_malformed_problems_are_refused(source: bytes, said: str) -> None:
    """The message is one sentence that opens with the file's name and lists what is allowed."""
    with pytest.raises(Refused) as caught:
        solving.read(source, "p.json", KNOWN)
    assert str(caught.value).startswith(said)


def test_the_first_method_is_the_default() -> None:
    """Without a method the kind's first one solves, and options reach it unchanged."""
    plan = solving.solve(KIND, drawn(), time_limit_s=2.5, seed=7)
    assert plan == solution(method=next(iter(METHODS)), solve_s=2.5, lower_bound=7.0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"method": "magic"}, "method 'magic' is not known for kind hpp; allowed are best, blind, never"),
        ({"method": ""}, "method '' is not known for kind hpp"),
        ({"time_limit_s": 0.0}, "time limit: 0.0 is not a number above 0"),
        ({"time_limit_s": float("nan")}, "time limit: nan is not a number above 0"),
        ({"time_limit_s": float("inf")}, "time limit: inf is not a number above 0"),
        ({"seed": -1}, "seed: -1 is below 0"),
        ({"seed": 2**32}, "seed: 4294967296 is above 4294967295"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], said: str) -> None:
    """Invalid options are refused before the solver is called."""
    with pytest.raises(Refused) as caught:
        solving.solve(KIND, drawn(), **options)
    assert str(caught.value).startswith(said)


def test_infeasible_problems_stay_infeasible() -> None:
    """The solver's Infeasible reaches the caller unchanged."""
    with pytest.raises(Infeasible, match="device nano-0 lacks 500 bytes"):
        solving.solve(KIND, drawn(), method="never")


def test_a_plan_is_the_contracts_json() -> None:
    """A plan's keys are in the contract's order; optional keys without a value are absent, an unknown bound is null."""
    assert list(solving.document(solution(lower_bound=None)).items()) == [
        ("kind", "hpp"),
        ("method", "best"),
        ("feasible", True),
        ("objective", 0.0125),
        ("lower_bound", None),
        ("solve_s", 0.25),
        ("deterministic", True),
        (
            "stages",
            [
                {
                    "layers": [0, 2],
                    "devices": [{"name": "nano-0", "samples": 1}, {"name": "nano-1", "samples": 1}],
                    "warmup": 3,
                },
                {"layers": [2, 3], "devices": [{"name": "tx2", "samples": 2}], "warmup": 1},
            ],
        ),
        ("formula_round_s", 0.012),
        ("memory_bytes", {"nano-0": 8600, "nano-1": 8600, "tx2": 4400}),
    ]


def test_optional_keys_are_written_and_read_back() -> None:
    """A reason and virtual workers are written if there are any, and every plan can be read back."""
    stages = (Stage(layers=(0, 3), devices=(Share(name="tx2", samples=2),), warmup=1),)
    worker = VirtualWorker(devices=("tx2",), stages=stages, micro_batches=5)
    plan = solution(feasible=False, reason="device tx2 lacks 1 byte", stages=(), virtual_workers=(worker,))
    plain = solving.document(plan)
    assert plain["reason"] == "device tx2 lacks 1 byte"
    assert plain["virtual_workers"] == [{"devices": ["tx2"], "stages": [json_io.dump(stages[0])], "micro_batches": 5}]
    assert json_io.parse(Solution, json.dumps(plain), "plan.json") == plan
    assert describe_plan(plan) == "1 virtual worker [tx2]"


@pytest.mark.parametrize("field", ["objective", "lower_bound", "solve_s", "formula_round_s"])
def test_a_plan_has_finite_numbers(field: str) -> None:
    """A plan with an infinite number is refused."""
    with pytest.raises(Refused, match=f"{field} must be a finite number"):
        solution(**{field: float("inf")})
