"""Problems of kind hpp are validated on construction: every fault raises one sentence that names it."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetune.clock import interpolate
from fleetune.contracts import json_io
from fleetune.errors import Refused
from fleetune.solving.hpp.problem import MAX_TIMES, Layer, Problem, warmups
from tests.support.solving.hpp.instances import drawn, tiny

GOOD = json_io.dump(drawn())
NAN, INFINITE = float("nan"), float("inf")
Path = tuple[str | int, ...]


def changed(path: Path, value: Any) -> dict[str, Any]:
    """The good problem with one value replaced."""
    plain = copy.deepcopy(GOOD)
    inner: Any = plain
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return plain


def refusal(plain: Any) -> str:
    """The message that the problem is refused with."""
    with pytest.raises(Refused) as caught:
        json_io.load(Problem, plain, "p.json")
    return str(caught.value)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("micro_batch",), 0, "micro_batch: 0 is below 1"),
        (("micro_batch",), "2", "micro_batch: must be a whole number (got '2')"),
        (("micro_batch",), True, "micro_batch: must be a whole number (got True)"),
        (("micro_batch",), 2.5, "micro_batch: must be a whole number (got 2.5)"),
        (("micro_batches",), -1, "micro_batches: -1 is below 1"),
        (("layers",), [], "layers: the list is empty; give at least one layer"),
        (("layers", 2, "name"), "embed", "layers 0 and 2 are both named 'embed'; names must differ"),
        (("layers", 1, "name"), " ", "layer 1: ' ' is not a name"),
        (("layers", 1, "name"), "a\nb", "layer 1: 'a\\nb' is not a name"),
        (("layers", 1, "param_bytes"), -1, "param_bytes of layer body: -1 is below 0"),
        (("layers", 1, "activation_bytes"), -1, "activation_bytes of layer body: -1 is below 0"),
        (("layers", 1, "flops"), -1, "flops of layer body: -1 is below 0"),
        (("layers", 1, "output_bytes"), -1, "output_bytes of layer body: -1 is below 0"),
        (("layers", 1, "gradient_bytes"), -1, "gradient_bytes of layer body: -1 is below 0"),
        (("layers", 1, "trainable_bytes"), -1, "trainable_bytes of layer body: -1 is below 0"),
        (("layers", 1, "trainable_bytes"), 1001, "trainable_bytes of layer body: 1001 is above its param_bytes 1000"),
        (
            ("layers", 1, "param_bytes"),
            10**30,
            "layers.1.param_bytes: must be a whole number of at most 4611686018427387904",
        ),
        (("devices",), [], "devices: the list is empty; give at least one device"),
        (("devices", 1, "name"), "tx2", "devices 1 and 2 are both named 'tx2'"),
        (("devices", 1, "memory_bytes"), -5, "memory_bytes of device nano-1: -5 is below 0"),
        (("batch_sizes",), [], "batch_sizes: the list is empty"),
        (("batch_sizes",), [0, 2], "batch_sizes: 0 is below 1"),
        (("batch_sizes",), [2, 1], "batch_sizes: 1 follows 2; give them ascending"),
        (("batch_sizes",), [2, 2], "batch_sizes: 2 is given twice"),
        (("batch_sizes",), [1, 2, 4], "forward_s of device nano-0, layer embed: 2 numbers for 3 batch sizes"),
        (("batch_sizes",), [3, 4], "forward_s of device nano-0, layer embed: a batch of 1 would take -0.5 s on the "),
        (("forward_s",), [], "forward_s: 0 rows for 3 devices"),
        (("forward_s", 1), [[0.5, 1.0]], "forward_s of device nano-1: 1 row for 3 layers"),
        (("backward_s", 1, 2), [0.5], "backward_s of device nano-1, layer head: 1 number for 2 batch sizes"),
        (("forward_s", 1, 2, 1), -0.01, "forward_s of device nano-1, layer head, batch size 2: -0.01 is below 0"),
        (("backward_s", 2, 0, 0), NAN, "backward_s of device tx2, layer embed, batch size 1: nan is not a finite"),
        (("backward_s", 2, 0, 0), INFINITE, "batch size 1: inf is not a finite number"),
        (("forward_s", 0, 0, 0), None, "forward_s.0.0.0: must be a number (got None)"),
        (("forward_s", 0, 0, 0), "1", "forward_s.0.0.0: must be a number (got '1')"),
        (("bandwidth_bytes_per_s",), [[1.0] * 3] * 2, "bandwidth_bytes_per_s: it is 2 x 3; it must be 3 x 3"),
        (("bandwidth_bytes_per_s",), [[1.0] * 2] * 3, "bandwidth_bytes_per_s: it is 3 x 2; it must be 3 x 3"),
        (("latency_s",), [], "latency_s: it is 0 x 0; it must be 3 x 3"),
        (("latency_s", 1), [0.1], "latency_s: its row of nano-1 has 1 number; it must be 3 x 3"),
        (("latency_s", 0, 2), -0.1, "latency_s from nano-0 to tx2: -0.1 is not a finite number of at least 0"),
        (("latency_s", 0, 2), None, "latency_s from nano-0 to tx2: null is not a finite number of at least 0"),
        (("bandwidth_bytes_per_s", 2, 1), 0, "bandwidth_bytes_per_s from tx2 to nano-1: 0.0 is not a finite number ab"),
        (("bandwidth_bytes_per_s", 2, 1), INFINITE, "from tx2 to nano-1: inf is not a finite number above 0"),
        (("bandwidth_bytes_per_s", 2, 1), None, "from tx2 to nano-1: null is not a finite number above 0"),
        (("optimizer_bytes_per_param_byte",), -1, "optimizer_bytes_per_param_byte: -1.0 is below 0"),
        (("optimizer_bytes_per_param_byte",), NAN, "optimizer_bytes_per_param_byte: nan is not a finite number"),
        (("snapshots",), 2, "snapshots is 2; allowed are 0, 1"),
        (("warmup",), "P", "warmup: 'P' is not known; allowed are 2(P-p)-1, 2(P-p), P-p, 2(P-p)+1, free and a list"),
        (("warmup",), 3, "warmup: 3 is neither a policy's name nor a list of integers"),
        (("warmup",), [2, "1"], "warmup: [2, '1'] is neither a policy's name nor a list of integers"),
        (("warmup",), [], "warmup: [] fixes 0 stages; 3 layers on 3 devices allow 1 to 3"),
        (("warmup",), [4, 3, 2, 1], "warmup: [4, 3, 2, 1] fixes 4 stages; 3 layers on 3 devices allow 1 to 3"),
        (("warmup",), [1, 0], "warmup: [1, 0] has an entry below 1"),
        (("warmup",), [1, 2], "warmup: [1, 2] increases towards the last segment, which deadlocks"),
        (("layers", 0, "colour"), 1, "layers.0.colour: unknown key; allowed are name, param_bytes"),
        (("kind",), "HPP", "kind: must be 'hpp' (got 'HPP')"),
    ],
)
def test_each_fault_is_named(path: Path, value: Any, said: str) -> None:
    """The message names field, device, layer and size, what was given, and what is allowed."""
    assert refusal(changed(path, value)).startswith("p.json: ")
    assert said in refusal(changed(path, value))


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("micro_batch",), 10**9, f"give at most {MAX_TIMES // 9} samples"),
        (("micro_batches",), 10**9, "micro_batches: 1000000000 is above 1000000"),
        (("forward_s", 0, 0, 1), 1e300, "forward_s: a round could come to"),
        (("latency_s", 0, 1), 1e12, "latency_s: a round could come to"),
        (("bandwidth_bytes_per_s", 0, 1), 1e-300, "bandwidth_bytes_per_s: a round could come to"),
        (("layers", 0, "activation_bytes"), 2**61, "activation_bytes: a round could come to 2.31e+19 bytes"),
        (("layers", 0, "output_bytes"), 2**61, "output_bytes: a round could come to"),
    ],
)
def test_what_cannot_be_counted_is_refused(path: Path, value: Any, said: str) -> None:
    """Slips of units that would overflow nanoseconds, bytes or memory are refused by the field that causes it."""
    assert said in refusal(changed(path, value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("micro_batch",), 2.0),
        (("layers", 0, "flops"), 1e9),
        (("layers", 0, "gradient_bytes"), None),
        (("layers", 0, "trainable_bytes"), 0),
        (("layers", 0, "param_bytes"), 0),
        (("devices", 0, "memory_bytes"), 0),
        (("forward_s", 0, 0), [0, 0]),
        (("forward_s", 0, 0), [1.0, 0.5]),
        (("latency_s", 0, 1), 0),
        (("latency_s", 0, 0), -1),
        (("bandwidth_bytes_per_s", 0, 0), NAN),
        (("bandwidth_bytes_per_s", 0, 0), 0),
        (("optimizer_bytes_per_param_byte",), 0),
        (("snapshots",), 1),
        (("warmup",), "free"),
        (("warmup",), "2(P-p)+1"),
        (("warmup",), [9, 3, 3]),
        (("warmup",), [5, 9]),
    ],
)
def test_what_may_be(path: Path, value: Any) -> None:
    """Zeros, whole floats, any diagonal, every policy, and lists that do not increase below micro_batches are fine."""
    json_io.load(Problem, changed(path, value), "p.json")


def test_a_problem_is_its_json() -> None:
    """Reading what was written gives the same problem; optional keys may be left out."""
    problem = tiny(3)
    assert json_io.parse(Problem, json_io.text(problem), "p.json") == problem
    short = {key: value for key, value in GOOD.items() if key not in ("snapshots", "warmup", "kind")}
    assert json_io.load(Problem, short, "p.json") == drawn()


def leaves(value: Any, path: Path = ()) -> Iterator[Path]:
    """The path to every number and text inside."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*path, key))
    elif value is not None:
        yield path


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(list(leaves(GOOD))), st.sampled_from([NAN, -3, -0.5, "", {}, [[]], True, -(10**400)]))
def test_any_field_spoilt_is_refused_by_its_name(path: Path, value: Any) -> None:
    """Whatever single value of a good problem is spoilt, the sentence names its field."""
    if path[-2:-1] and path[-1] == path[-2] and path[0] in ("bandwidth_bytes_per_s", "latency_s"):
        return  # the diagonal may be any number
    said = refusal(changed(path, value))
    named = "name" if path[-1] == "name" else next(str(key) for key in reversed(path) if isinstance(key, str))
    assert named in said
    assert "\n" not in said


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(sorted(GOOD)),
        st.recursive(
            st.none() | st.integers(-2, 3) | st.text(max_size=3),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "flops"]), inner),
        ),
    )
)
def test_whole_sections_spoilt_never_leave_a_traceback(spoilt: dict[str, Any]) -> None:
    """Any JSON in any section is either a problem or refused in one sentence."""
    try:
        json_io.load(Problem, GOOD | spoilt, "p.json")
    except Refused as refused:
        assert str(refused).startswith("p.json: ")


@pytest.mark.parametrize(
    "missing", sorted(set(GOOD) - {"kind", "snapshots", "warmup", "optimizer_bytes_per_param_byte"})
)
def test_required_keys(missing: str) -> None:
    """A key that is left out is named."""
    plain = {key: value for key, value in GOOD.items() if key != missing}
    assert refusal(plain) == f"p.json: {missing}: this key is required"


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=3, unique=True).map(sorted),
    st.lists(st.integers(0, 6), min_size=3, max_size=3),
    st.integers(1, 12),
)
def test_lines_below_0_are_refused_as_the_clock_refuses_them(sizes: list[int], times: list[int], samples: int) -> None:
    """A problem is refused for its lines just when some number of samples has a negative time by the clock's rule."""
    row = tuple(float(t) for t in times[: len(sizes)])
    given_times = (((row,),), ((tuple(1.0 for _ in sizes),),))
    layer = Layer(name="only", param_bytes=1, activation_bytes=1, flops=1, output_bytes=1)
    one = drawn().devices[:1]
    rest = {"layers": (layer,), "devices": one, "bandwidth_bytes_per_s": ((None,),), "latency_s": ((None,),)}

    def made() -> Problem:
        return drawn(
            micro_batch=samples, batch_sizes=tuple(sizes), forward_s=given_times[0], backward_s=given_times[1], **rest
        )

    try:
        for y in range(1, samples + 1):
            interpolate(sizes, row, y)
    except Refused:
        with pytest.raises(Refused, match="forward_s of device nano-0, layer only: a batch of .* on the line through"):
            made()
    else:
        made()


def test_random_problems_are_problems() -> None:
    """The instances of these tests are valid and as large as requested."""
    for seed in range(30):
        problem = tiny(seed, 1 + seed % 6, 1 + seed % 4, 1 + seed % 7, memory=0.4, link=10.0 ** (seed % 3 - 1))
        assert problem == tiny(seed, 1 + seed % 6, 1 + seed % 4, 1 + seed % 7, memory=0.4, link=10.0 ** (seed % 3 - 1))
        assert json_io.parse(Problem, json.dumps(json_io.dump(problem)), "p.json") == problem


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("2(P-p)-1", [5, 3, 1]),
        ("2(P-p)", [6, 4, 2]),
        ("P-p", [3, 2, 1]),
        ("2(P-p)+1", [7, 5, 3]),
        ((9, 4, 4), [9, 4, 4]),
    ],
)
def test_warmups_of_three_segments(policy: str | tuple[int, ...], expected: list[int]) -> None:
    """Each policy as written, first segment first; a list as given."""
    assert warmups(policy, 3, 8) == expected


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("P", "'P' is not known; allowed are 2\\(P-p\\)-1, "),
        ((1, 1), "2 entries for 3 segments"),
        ((2, 1, 0), "an entry below 1"),
        ((1, 2, 1), "increases towards the last segment"),
    ],
)
def test_warmups_that_cannot_be_are_refused(policy: str | tuple[int, ...], words: str) -> None:
    """The message says what is allowed."""
    with pytest.raises(Refused, match=words):
        warmups(policy, 3, 8)


def test_warmups_beyond_the_micro_batches_may_differ() -> None:
    """Capped at 2 micro-batches, 5, 9, 1 is 2, 2, 1: it does not increase."""
    assert warmups((5, 9, 1), 3, 2) == [5, 9, 1]
