"""Construction of a problem of kind deft validates it: any fault is one sentence that names it."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetune.contracts import json_io
from fleetune.errors import Refused
from fleetune.solving.lola_deft.problem import Problem
from tests.support.solving.lola_deft.instances import plain, problem

NAN, INFINITE = float("nan"), float("inf")


def refusal(values: Any) -> str:
    """Return the message of the refusal."""
    with pytest.raises(Refused) as caught:
        json_io.load(Problem, values, "p.json")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("kind", "DEFT", "kind: must be 'deft' (got 'DEFT')"),
        ("bandwidth", "even", "bandwidth: must be 'equal' or 'joint' (got 'even')"),
        ("bandwidth", None, "bandwidth: must be 'equal' or 'joint' (got None)"),
        ("colour", 1, "colour: unknown key; allowed are kind, bandwidth, compute_s, memory_bytes, block_memory_bytes,"),
        ("compute_s", [], "compute_s: 0 rows for 3 devices; give one for each, in their order"),
        ("compute_s", [[1.0, 2.0]], "compute_s: 1 row for 3 devices"),
        ("compute_s", [[1.0, 2.0], [1.0], [1.0, 2.0]], "compute_s of device 1: 1 number for 2 blocks"),
        ("compute_s", [[1.0, 2.0], [1.0, -2.0], [1.0, 2.0]], "compute_s of device 1, block 1: -2.0 is below 0"),
        ("compute_s", [[1.0, 2.0], [NAN, 2.0], [1.0, 2.0]], "compute_s of device 1, block 0: nan is not a finite"),
        ("compute_s", [[1.0, INFINITE]] * 3, "compute_s of device 0, block 1: inf is not a finite number"),
        ("compute_s", [[1.0, 1e301]] * 3, "compute_s of device 0, block 1: 1e+301 is above 1e+300"),
        ("compute_s", [[1.0, None]] * 3, "compute_s.0.1: must be a number (got None)"),
        ("compute_s", [[1.0, "2"]] * 3, "compute_s.0.1: must be a number (got '2')"),
        ("compute_s", [[1.0, True]] * 3, "compute_s.0.1: must be a number (got True)"),
        ("compute_s", [1.0, 2.0, 3.0], "compute_s.0: must be a list, [...] (got 1.0)"),
        ("compute_s", 1.0, "compute_s: must be a list, [...] (got 1.0)"),
        ("memory_bytes", [], "memory_bytes: the list is empty; give one number for each device, at least one"),
        ("memory_bytes", [1, 2], "compute_s: 3 rows for 2 devices"),
        ("memory_bytes", [1, -2, 3], "memory_bytes of device 1: -2.0 is below 0"),
        ("memory_bytes", [1, NAN, 3], "memory_bytes of device 1: nan is not a finite number"),
        ("memory_bytes", [1, "2", 3], "memory_bytes.1: must be a number (got '2')"),
        ("block_memory_bytes", [], "block_memory_bytes: the list is empty; give one number for each block"),
        ("block_memory_bytes", [1], "compute_s of device 0: 2 numbers for 1 block"),
        ("block_memory_bytes", [1, -1], "block_memory_bytes of block 1: -1.0 is below 0"),
        ("block_bits", -1, "block_bits: -1.0 is below 0"),
        ("block_bits", NAN, "block_bits: nan is not a finite number"),
        ("block_bits", "1", "block_bits: must be a number (got '1')"),
        ("block_bits", 1e61, "block_bits: 1e+61 is above 1e+60"),
        ("block_bits", 1e-61, "block_bits: 1e-61 is below 1e-60"),
        ("bandwidth_hz", 0, "bandwidth_hz: 0.0 is not above 0; give a number above 0"),
        ("bandwidth_hz", -1, "bandwidth_hz: -1.0 is below 0"),
        ("bandwidth_hz", INFINITE, "bandwidth_hz: inf is not a finite number"),
        ("bandwidth_hz", 1e61, "bandwidth_hz: 1e+61 is above 1e+60"),
        ("bandwidth_hz", 1e-61, "bandwidth_hz: 1e-61 is below 1e-60"),
        ("bandwidth_hz", True, "bandwidth_hz: must be a number (got True)"),
        ("spectral_efficiency", [1, 2], "spectral_efficiency: 2 numbers for 3 devices"),
        (
            "spectral_efficiency",
            [1, 0, 2],
            "spectral_efficiency of device 1: 0.0 is not above 0; give a number above 0; ",
        ),
        ("spectral_efficiency", [1, -1, 2], "spectral_efficiency of device 1: -1.0 is below 0"),
        ("spectral_efficiency", [1, NAN, 2], "spectral_efficiency of device 1: nan is not a finite number"),
        ("spectral_efficiency", [1, 1e61, 2], "spectral_efficiency of device 1: 1e+61 is above 1e+60"),
    ],
)
def test_each_fault_is_named(key: str, value: Any, said: str) -> None:
    """The message names field, device and block, the given value, and what is allowed."""
    assert refusal(plain(**{key: value})).startswith(f"p.json: {said}")


@pytest.mark.parametrize("missing", sorted(set(plain()) - {"kind"}))
def test_required_keys(missing: str) -> None:
    """A missing key is named."""
    values = {key: value for key, value in plain().items() if key != missing}
    assert refusal(values) == f"p.json: {missing}: this key is required"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("bandwidth", "equal"),
        ("compute_s", [[0, 0]] * 3),
        ("compute_s", [[2.0, 1.0]] * 3),
        ("memory_bytes", [1e9, 2.5, 0]),
        ("block_memory_bytes", [0, 0]),
        ("block_memory_bytes", [3000, 1000]),
        ("block_bits", 0),
        ("block_bits", 1.5),
    ],
)
def test_what_may_be(key: str, value: Any) -> None:
    """Zeros, fractions of bytes and bits, and non-monotone rows are valid."""
    json_io.load(Problem, plain(**{key: value}), "p.json")


def test_a_problem_is_its_json() -> None:
    """A problem that is written and read again is equal; the kind may be omitted."""
    assert json_io.parse(Problem, json_io.text(problem()), "p.json") == problem()
    assert json_io.load(Problem, {k: v for k, v in plain().items() if k != "kind"}, "p.json") == problem()


def test_too_many_pairs_are_refused() -> None:
    """Too many pairs are refused before any table is made."""
    many = [1.0] * 100_000
    said = refusal(plain(memory_bytes=many, block_memory_bytes=many))
    assert said == "p.json: compute_s: 10000000000 pairs of device and block; at most 20000000 are planned at once"


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(sorted(plain())),
        st.recursive(
            st.none() | st.integers(-2, 3) | st.floats() | st.just(10**400) | st.text(max_size=3) | st.booleans(),
            lambda inner: st.lists(inner, max_size=3),
            max_leaves=9,
        ),
        min_size=1,
        max_size=3,
    )
)
def test_whatever_is_spoilt_leaves_no_traceback(spoilt: dict[str, Any]) -> None:
    """Any JSON under any key is either a problem or refused in one sentence."""
    try:
        json_io.load(Problem, plain(**spoilt), "p.json")
    except Refused as refused:
        assert str(refused).startswith("p.json: ")
        assert "\n" not in str(refused)
