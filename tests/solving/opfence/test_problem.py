"""Construction of a problem of kind opfence validates it: any fault is one sentence that names it."""

import copy
import json
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetune.contracts import json_io
from fleetune.errors import FleetuneError, Infeasible, Refused
from fleetune.solving import kinds, read
from fleetune.solving.opfence.problem import Problem
from fleetune.solving.opfence.solve import solve
from tests.support.solving.opfence.instances import drawn, solved

GOOD = drawn()
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


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("operators",), [], "operators: the list is empty; give at least one operator"),
        (("operators", 1, "name"), "in", "operators 0 and 1 are both named 'in'; names must differ"),
        (("operators", 1, "name"), " ", "operator 1: ' ' is not a name"),
        (("operators", 1, "flops"), -1, "flops of operator left: -1 is below 0"),
        (("operators", 1, "flops"), True, "operators.1.flops: must be a whole number (got True)"),
        (("operators", 1, "flops"), "9", "operators.1.flops: must be a whole number (got '9')"),
        (("operators", 1, "flops"), 0.5, "operators.1.flops: must be a whole number (got 0.5)"),
        (("operators", 1, "flops"), 10**30, "operators.1.flops: must be a whole number of at most 46"),
        (("operators", 1, "param_bytes"), -1, "param_bytes of operator left: -1 is below 0"),
        (("operators", 1, "output_bytes"), None, "operators.1.output_bytes: must be a whole number (got None)"),
        (("operators", 1, "output_bytes"), NAN, "operators.1.output_bytes: must be a whole number (got nan)"),
        (("operators", 1, "inputs"), ["ni"], "inputs of operator left: 'ni' is not an operator; give names of"),
        (("operators", 1, "inputs"), ["in", "in"], "inputs of operator left: 'in' is given twice; give each input"),
        (("operators", 1, "inputs"), ["left"], "operators: left -> left is a cycle; an input must not need its"),
        (("operators", 0, "inputs"), ["out"], "is a cycle; an input must not need its user"),
        (("operators", 1, "inputs"), "in", "operators.1.inputs: must be a list, [...] (got 'in')"),
        (("operators", 1, "colour"), "red", "operators.1.colour: unknown key; allowed are name, flops, param_bytes"),
        (("devices",), [], "devices: the list is empty; give at least one device"),
        (("devices", 1, "name"), "a", "devices 0 and 1 are both named 'a'"),
        (("devices", 1, "flops_per_s"), 0.0, "flops_per_s of device b: 0.0 is not above 0; give a number above 0"),
        (("devices", 1, "flops_per_s"), -1.0, "flops_per_s of device b: -1.0 is below 0"),
        (("devices", 1, "flops_per_s"), NAN, "flops_per_s of device b: nan is not a finite number"),
        (("devices", 1, "flops_per_s"), "fast", "devices.1.flops_per_s: must be a number (got 'fast')"),
        (("devices", 1, "memory_bytes"), -5, "memory_bytes of device b: -5 is below 0"),
        (("alpha_s",), [[0]], "alpha_s: it is 1 x 1; it must be 3 x 3"),
        (("alpha_s", 1), [0.1], "alpha_s: its row of b has 1 number; it must be 3 x 3"),
        (("alpha_s", 1, 2), None, "alpha_s from b to c: null is not a finite number of at least 0; give one for every"),
        (("alpha_s", 1, 2), -0.1, "alpha_s from b to c: -0.1 is not a finite number of at least 0"),
        (("beta_s_per_byte", 0, 1), None, "beta_s_per_byte from a to b: null is not a finite number of at least 0"),
        (("beta_s_per_byte", 0, 1), INFINITE, "beta_s_per_byte from a to b: inf is not a finite number"),
        (("beta_s_per_byte", 0, 1), True, "beta_s_per_byte.0.1: must be a number (got True)"),
        (("micro_batches",), 0, "micro_batches: 0 is below 1"),
        (("micro_batches",), 10**12, "micro_batches: 1000000000000 is above 1000000000"),
        (("optimizer_bytes_per_param_byte",), -1.0, "optimizer_bytes_per_param_byte: -1.0 is below 0"),
        (("compression_ratio",), 0.5, "compression_ratio: 0.5 is below 1; give a number of at least 1"),
        (("compression_ratio",), "100", "compression_ratio: must be a number (got '100')"),
        (
            ("codec_bytes_per_kept_element",),
            0,
            "codec_bytes_per_kept_element: 0.0 is not above 0; give a number above 0",
        ),
        (("element_bytes",), 0, "element_bytes: 0.0 is not above 0; give a number above 0"),
        (("element_bytes",), -4, "element_bytes: -4.0 is below 0"),
        (("element_bytes",), 1e-320, "element_bytes: 1e-320 is below 1e-06; give a number of at least 1e-06"),
        (("element_bytes",), 1e7, "element_bytes: 10000000.0 is above 1000000.0"),
        (("codec_bytes_per_kept_element",), 1e-300, "codec_bytes_per_kept_element: 1e-300 is below 1e-06"),
        (("codec_bytes_per_kept_element",), 1e300, "codec_bytes_per_kept_element: 1e+300 is above 1000000.0"),
        (("compression_ratio",), 1e16, "compression_ratio: 1e+16 is above 1000000000000000.0"),
        (("devices", 1, "flops_per_s"), 1e-320, "flops_per_s of device b: 1e-320 is below 1e-60; give a number of at"),
        (("devices", 1, "flops_per_s"), 1e308, "flops_per_s of device b: 1e+308 is above 1e+60"),
        (("alpha_s", 1, 2), 1e-320, "alpha_s from b to c: 1e-320 is outside what can be computed with; give 0 or a nu"),
        (("beta_s_per_byte", 2, 0), 1e308, "beta_s_per_byte from c to a: 1e+308 is outside what can be computed with"),
        (("kind",), "fence", "kind: must be 'opfence' (got 'fence')"),
        (("gpus",), 3, "gpus: unknown key; allowed are kind, operators, devices"),
        (("devices", 0, "flops_per_s"), 1e-50, "flops_per_s: all together come to 7.2e+53 s, beyond the 1e+18 s"),
        (
            ("operators", 0, "param_bytes"),
            2**61,
            "param_bytes: all together come to 9.22e+18 bytes, beyond the 4.61e+18",
        ),
    ],
)
def test_fault_is_named(path: Path, value: Any, said: str) -> None:
    """Each fault is refused by field, row and column."""
    with pytest.raises(Refused) as caught:
        json_io.load(Problem, changed(path, value), "p.json")
    assert said in str(caught.value)


@pytest.mark.parametrize("key", ["operators", "devices", "alpha_s", "beta_s_per_byte", "micro_batches"])
def test_key_is_required(key: str) -> None:
    """A key without a default is required."""
    with pytest.raises(Refused, match=f"p.json: {key}: this key is required"):
        json_io.load(Problem, {name: value for name, value in GOOD.items() if name != key}, "p.json")


def test_codec_is_required_with_a_ratio() -> None:
    """The codec's bytes per kept element are required with a ratio only."""
    plain = {name: value for name, value in GOOD.items() if name != "codec_bytes_per_kept_element"}
    assert json_io.load(Problem, plain, "p.json").element_bytes == 4
    with pytest.raises(Refused, match="codec_bytes_per_kept_element: this key is required where there is a compre"):
        json_io.load(Problem, plain | {"compression_ratio": 10}, "p.json")


def test_cycle_is_shown() -> None:
    """A cycle is shown from input to user."""
    plain = changed(("operators", 1, "inputs"), ["mid"])
    with pytest.raises(Refused, match="operators: left -> mid -> left is a cycle; an input must not need its user"):
        json_io.load(Problem, plain, "p.json")


def test_through_the_interface() -> None:
    """Problem files name the kind, and 1e2 is the same as 100."""
    kind, asked = read(json.dumps(changed(("operators", 0, "flops"), 1e2)), "p.json", kinds())
    assert kind.name == "opfence"
    assert asked.operators[0].flops == 100


@pytest.mark.parametrize("method", ["search", "opfence"])
def test_operator_that_fits_nowhere(method: str) -> None:
    """The message names the operator with its need and the roomiest device with what it lacks; one byte more fits."""
    plain = changed(("operators", 2, "param_bytes"), 461)
    with pytest.raises(Infeasible) as caught:
        solved(plain, method)
    assert str(caught.value).startswith(
        "operator mid needs 2004 bytes alone (parameters with gradients and optimizer state, outputs of 4 "
        "micro-batches); device c, the roomiest, has 2000 and lacks 4; "
    )
    assert solved(changed(("operators", 2, "param_bytes"), 460), method)["placement"]["mid"] == "c"


@pytest.mark.parametrize("method", ["search", "opfence"])
def test_all_together_fit_nowhere(method: str) -> None:
    """If only the total exceeds memory, the message still names the roomiest device and the largest operator."""
    plain = changed(("operators", 0, "param_bytes"), 110)
    plain["operators"][4]["param_bytes"] = 110
    plain["devices"] = [device | {"memory_bytes": 900} for device in plain["devices"]]
    plain["operators"][1]["param_bytes"] = plain["operators"][2]["param_bytes"] = 180
    with pytest.raises(Infeasible) as caught:
        solved(plain, method)
    assert str(caught.value) == (
        "all operators with gradients, optimizer state and outputs need 3232 bytes, all devices together have 2700 and "
        "lack 532; device a, the roomiest, has 900, operator left, the largest, needs 880; add memory, or keep fewer "
        "micro-batches at a time"
    )


FAR = [1e-60, 1e-30, 1e-6, 1.0, 1e6]


@pytest.mark.parametrize("seed", range(40))
def test_far_ends(seed: int) -> None:
    """Numbers at the limits are either computed without a warning or refused."""
    random = Random(seed)
    plain = drawn(compression_ratio=random.choice([None, 1.0, 1e15]))
    plain["element_bytes"], plain["codec_bytes_per_kept_element"] = random.choices([1e-6, 4.0, 1e6], k=2)
    plain["devices"] = [device | {"flops_per_s": random.choice([*FAR, 1e60])} for device in plain["devices"]]
    for field in ("alpha_s", "beta_s_per_byte"):
        plain[field] = [[random.choice([0, *FAR]) for _ in range(3)] for _ in range(3)]
    for method in ("search", "opfence", "equal-compute"):
        try:
            assert solved(plain, method)["objective"] >= 0
        except Refused as error:
            assert "check the unit" in str(error)


@pytest.mark.parametrize("method", ["search", "opfence"])
def test_no_packing(method: str) -> None:
    """Total memory suffices, but not for three operators that are each larger than half a device."""
    plain = drawn(alpha_s=[[0, 1], [1, 0]], beta_s_per_byte=[[0, 1], [1, 0]])
    plain["operators"] = [
        {"name": name, "flops": 1, "param_bytes": 60, "output_bytes": 0, "inputs": []} for name in ("x", "y", "z")
    ]
    plain["devices"] = [{"name": name, "flops_per_s": 1, "memory_bytes": 400} for name in ("a", "b")]
    with pytest.raises(Infeasible) as caught:
        solved(plain, method)
    assert str(caught.value).startswith(
        "no placement fits all memories: with the largest operators placed first, operator z needs 240 bytes and "
        "device a, which has most left, lacks 80 of them; "
    )


@pytest.mark.parametrize("method", ["equal-modules", "equal-compute"])
def test_baselines_ignore_memory(method: str) -> None:
    """Baselines ignore memory: the plan is infeasible and names the device that lacks most."""
    plan = solved(changed(("devices", 0, "memory_bytes"), 400), method)
    assert plan["feasible"] is False
    assert plan["reason"].startswith("device a lacks ")


def test_unknown_method() -> None:
    """An unknown method is refused with the known ones."""
    with pytest.raises(Refused, match="method: 'louvain' is not known; allowed are search, opfence, equal-modules"):
        solve(json_io.load(Problem, GOOD, "p.json"), method="louvain")


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=3), st.just([]), st.just({})
)


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(sorted(GOOD)), st.integers(0, 2), st.integers(0, 4), JUNK)
def test_no_traceback(key: str, row: int, column: int, junk: Any) -> None:
    """Any JSON value in any place gives a plan or a message."""
    plain = copy.deepcopy(GOOD)
    inner = plain[key]
    if isinstance(inner, list) and isinstance(inner[row], list):
        inner[row][column % len(inner[row])] = junk
    elif isinstance(inner, list):
        inner[row][sorted(inner[row])[column % len(inner[row])]] = junk
    else:
        plain[key] = junk
    try:
        solved(plain, "opfence")
    except FleetuneError as error:
        assert str(error)
