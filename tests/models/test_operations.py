"""Arguments travel as JSON and come back equal; functions and sizes are restricted to short lists."""

import json
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from fleetune.errors import Refused
from fleetune.models.operations import (
    RUN_DEVICE,
    NodeRef,
    SizeEvaluator,
    SizeExpression,
    argument_from_json,
    argument_to_json,
    bind_argument,
    references,
    torch_function,
)

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.builds(NodeRef, st.integers(0, 99))
    | st.sampled_from(
        [
            SizeExpression("3*s0"),
            torch.float32,
            torch.bool,
            torch.contiguous_format,
            torch.strided,
            Ellipsis,
            RUN_DEVICE,
            slice(None, NodeRef(4), 2),
        ]
    )
)
ARGUMENTS = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(deadline=None, max_examples=200)
@given(ARGUMENTS)
def test_every_kind_of_argument_comes_back_from_json_as_it_was(argument: Any) -> None:
    """Numbers with infinities, strings, references, sizes, slices, dtypes, devices and their nestings survive JSON."""
    text = json.dumps(argument_to_json(argument), allow_nan=False)
    back = argument_from_json(json.loads(text))
    assert back == argument
    assert type(back) is type(argument)
    assert list(references(back)) == list(references(argument))


def test_a_number_that_is_none_comes_back() -> None:
    """NaN is the one argument that is not equal to itself."""
    back = argument_from_json(json.loads(json.dumps(argument_to_json([float("nan")]), allow_nan=False)))
    assert back[0] != back[0]


@pytest.mark.parametrize("argument", [object(), {1, 2}, 1j, torch.zeros(1), {1: 2}], ids=lambda a: type(a).__name__)
def test_an_argument_that_cannot_be_rebuilt_elsewhere_is_refused(argument: Any) -> None:
    """Tensors, sets, complex numbers and dictionaries with keys other than strings cannot be in a graph."""
    with pytest.raises(Refused, match="cannot be written into the graph"):
        argument_to_json(argument)


@pytest.mark.parametrize(
    "value",
    [
        {"$ref": "x"}, {"$ref": 1, "$size": "s0"}, {"$pickle": "gASV"}, {}, {"$dtype": "load"},
        {"$slice": [1, 2, 3, 4]}, {"$tuple": 5}, {"$dict": [1]}, {"$float": "much"}, {"$memory_format": "float32"},
    ],
    ids=str,
)  # fmt: skip
def test_a_malformed_argument_is_refused(value: Any) -> None:
    """Anything but the written forms is refused in a sentence about the graph."""
    with pytest.raises(Refused, match=r"^graph: "):
        argument_from_json(value)


def test_bind_puts_values_and_sizes_in_their_places() -> None:
    """References become values and symbolic sizes become numbers, at any depth."""
    bound = bind_argument(
        [NodeRef(1), (SizeExpression("2*s0"), slice(None, NodeRef(1))), {"k": SizeExpression("s0")}],
        {1: 7},
        SizeEvaluator("s0"),
        3,
    )
    assert bound == [7, (6, slice(None, 7)), {"k": 3}]


@pytest.mark.parametrize(
    "name",
    [
        "os.system", "torch.load", "torch.save", "torch.hub.load", "torch.serialization.load", "torch.jit.load",
        "torch.from_file", "torch.Tensor.module_load", "torch.Tensor.numpy", "torch.Tensor.data_ptr",
        "torch.Tensor.__reduce_ex__", "torch.Tensor.__setstate__", "torch.Tensor.apply_", "torch.Tensor.set_",
        "torch.Tensor.register_hook", "torch.Tensor.storage", "torch.Tensor.share_memory_", "torch.Tensor.__setitem__",
        "torch.Tensor.add_", "torch.Tensor.__iadd__", "torch.Tensor.__class__", "torch.utils.data.os.system",
        "torch.os.system", "torch.compile", "torch.vmap", "torch.import_ir_module", "torch.frombuffer", "torch", "",
        "torch.manual_seed", "torch.set_default_device", "torch.nn.Linear", "torch.Tensor", "torch.autocast",
        "torch._C._jit_clear_class_registry", "torch.classes.load_library", "operator.methodcaller",
        "operator.attrgetter", "builtins.eval",
        "torch.ops.load_library", "torch.nn.init.zeros_", "torch.nn.functional.torch.load",
    ],
)  # fmt: skip
def test_a_graph_cannot_name_what_is_not_a_pure_function_of_tensors(name: str) -> None:
    """Files, code, memory, other libraries, classes and functions that change their input are refused."""
    with pytest.raises(Refused, match="is not a torch function that a graph may name"):
        torch_function(name)


@pytest.mark.parametrize(
    "name, expected",
    [
        ("torch.cat", torch.cat),
        ("torch.Tensor.__and__", torch.Tensor.__and__),
        ("torch.Tensor.new_ones", torch.Tensor.new_ones),
        ("torch.arange", torch.arange),
        ("torch.nn.functional.pad", torch.nn.functional.pad),
    ],
)
def test_pure_functions_are_found_by_name(name: str, expected: Any) -> None:
    """A dotted name stands for torch's own function."""
    assert torch_function(name) is expected


@pytest.mark.parametrize(
    "expression, value",
    [
        ("s0", 6), ("3*s0 + 1", 19), ("-s0 + 8", 2), ("(s0//4)", 1), ("s0/2", 3), ("s0**2", 36), ("s0 % 4", 2),
        ("Mod(s0, 4)", 2), ("PythonMod(s0, 4)", 2), ("FloorDiv(s0, 4)", 1), ("CleanDiv(s0, 3)", 2),
        ("CeilDiv(s0, 4)", 2),
        ("Max(2, s0)", 6), ("Min(2, s0)", 2), ("12", 12),
    ],
)  # fmt: skip
def test_sizes_are_calculated_exactly(expression: str, value: int) -> None:
    """Expressions are evaluated for a batch of 6."""
    assert SizeEvaluator("s0").evaluate(expression, 6) == value


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os').system('true')", "s0.__class__", "s1", "(lambda: 1)()", "[s0 for s0 in (1,)]", "exec('1')",
        "9**9**9", "s0**99", "True", "1.5", "s0/4", "s0//0", "", "Max()", "Max(s0, key=1)", "'a'", "1 if s0 else 2",
        "(" * 300 + "s0" + ")" * 300, "s0" * 300, "(" * 20 + "s0" + ")**8" * 20, "s0; s0", "print", "10**400000000",
    ],
    ids=lambda text: text[:20],
)  # fmt: skip
def test_a_size_is_never_evaluated_as_code(expression: str) -> None:
    """Names, attributes, calls, strings, huge powers and fractions are refused, and nothing runs."""
    with pytest.raises(Refused, match=r"^graph: "):
        SizeEvaluator("s0").evaluate(expression, 6)
