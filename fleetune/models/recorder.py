"""Records a model: runs it once on fake tensors with a symbolic batch size and keeps every operation.

Leaf modules are recorded as one call each, torch functions between them one by one. Nothing is computed and no weight
is needed, so a model of any size is recorded in seconds, and one recording serves every batch size.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.nn.utils import stateless
from torch.utils import _pytree as pytree
from transformers import pytorch_utils

from fleetune.errors import Refused
from fleetune.models import graph as g
from fleetune.models.compute_copies import computed_type, halved_parameters, in_type
from fleetune.models.operations import SizeEvaluator, bind_argument, references
from fleetune.models.recording import Recording, StandIn


def record_model(
    model: nn.Module, samples: Mapping[str, torch.Tensor], leaf_names: set[str], compute: str = ""
) -> g.Graph:
    """Record `model(**samples).logits` (or its first output); the model may live on the meta device.

    samples: real tensors of at least 2 samples each, used for shapes and dtypes only. compute: the graph's, in which
    floating samples are recorded, too. The returned graph has no units.
    Refused for a model that cannot be recorded, naming the operation.
    """
    name = type(model).__name__
    environment = ShapeEnv()
    fake = FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True)
    dtype = computed_type(compute)
    inputs = {key: _fake_input(fake, in_type(value, dtype)) for key, value in samples.items()}
    batch = str(next(iter(inputs.values())).shape[0].node.expr)
    try:
        recorder = Recording(model, leaf_names, environment, batch)
        substitutes = _fake_state(model, fake, recorder, dtype)
        for key, value in inputs.items():
            recorder.keep_input(key, value)
        with _recording(model, substitutes, fake, recorder):
            result = model(**inputs)
            recorder.refuse_branches()
        logits = result.logits if hasattr(result, "logits") else pytree.tree_leaves(result)[0]
        output = recorder.reference(logits).node
    except Refused as error:
        raise Refused(f"model: {name} has no graph ({error}); it cannot be cut") from None
    except Exception as error:  # the model's own code may raise anything on symbolic shapes
        raise Refused(
            f"model: {name} has no graph ({type(error).__name__}: {_short(error)}); it cannot be cut"
        ) from error
    if any(str(symbol) == batch for symbol in environment.replacements):
        raise Refused(f"model: {name} has no graph that holds for every batch size (it fixes the batch to one value)")
    return _pruned(recorder, {output}, batch, compute)


@dataclass(frozen=True)
class RecordedCall:
    """One call of a module, recorded. Inputs of its graph are named after the nodes whose values were given."""

    graph: g.Graph
    result: Any
    """What the call returned: NodeRefs in tuples, lists and dictionaries."""


def record_call(
    module: nn.Module, graph: g.Graph, node: g.Node, leaf_names: set[str], stand_ins: Mapping[str, StandIn]
) -> RecordedCall:
    """Record what `module` does when it is called as `node` of the recorded graph says.

    leaf_names: modules inside it that are recorded as one call. stand_ins: leaf module -> function that is run instead
    of it. Refused for a call that cannot be recorded.
    """
    environment = ShapeEnv()
    fake = FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True)
    samples = _fake_input(fake, torch.empty(RECORDED_SAMPLES)).shape[0]
    recorder = Recording(module, leaf_names, environment, str(samples.node.expr))
    recorder.stand_ins = stand_ins
    try:
        substitutes = _fake_state(module, fake, recorder, computed_type(graph.compute))
        with fake:
            given = {number: _fake_value(graph, number, samples) for number in node.reads}
        args, kwargs = bind_argument((node.args, node.kwargs), given, SizeEvaluator(graph.batch), RECORDED_SAMPLES)
        for number, value in given.items():
            recorder.keep_input(str(number), value)
        with _recording(module, substitutes, fake, recorder):
            result = module(*args, **kwargs)
            recorder.refuse_branches()
        written = recorder.write(result)
    except Refused:
        raise
    except Exception as error:  # the model's own code may raise anything on symbolic shapes
        raise Refused(f"{type(error).__name__}: {_short(error)}") from error
    return RecordedCall(_pruned(recorder, set(references(written)), str(samples.node.expr), graph.compute), written)


RECORDED_SAMPLES = 4
"""Samples that a recording is made with; any number above 1 gives the same."""


def _fake_value(graph: g.Graph, number: int, samples: torch.SymInt) -> torch.Tensor:
    """Return a fake tensor as the graph's node makes it, for a symbolic number of samples."""
    value = graph.value(number)
    if any(not size.isdigit() and size != graph.batch for size in value.shape):
        raise Refused(f"it is given a tensor of shape {' x '.join(value.shape)}, which cannot be recorded")
    sizes: Any = [samples if size == graph.batch else int(size) for size in value.shape]
    return torch.empty(sizes, dtype=getattr(torch, value.dtype)).requires_grad_(value.gradient)


def _fake_input(fake: FakeTensorMode, value: torch.Tensor) -> torch.Tensor:
    """Return a fake tensor of the same shape whose first dimension is the batch symbol."""
    kinds = [DimDynamic.DUCK if d == 0 else DimDynamic.STATIC for d in range(value.dim())]
    return fake.from_tensor(value, symbolic_context=StatelessSymbolicContext(dynamic_sizes=kinds))


def _fake_state(
    model: nn.Module, fake: FakeTensorMode, recorder: Recording, compute: torch.dtype | None
) -> dict[str, torch.Tensor]:
    """Return fake tensors for parameters and buffers by name, shared as in the model, parameters as they compute."""
    halved = halved_parameters(model) if compute else ()
    stand_ins: dict[str, torch.Tensor] = {}
    made: dict[int, torch.Tensor] = {}
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    with fake:
        for name, tensor in named:
            if id(tensor) not in made:
                empty = torch.empty(tensor.shape, dtype=compute if name in halved else tensor.dtype, device="cpu")
                is_parameter = isinstance(tensor, nn.Parameter)
                made[id(tensor)] = nn.Parameter(empty, requires_grad=tensor.requires_grad) if is_parameter else empty
                recorder.parameters[id(made[id(tensor)])] = name
            stand_ins[name] = made[id(tensor)]
    return stand_ins


@contextlib.contextmanager
def _recording(
    module: nn.Module, substitutes: dict[str, torch.Tensor], fake: FakeTensorMode, recorder: Recording
) -> Iterator[None]:
    """Have the recorder see all that the module does with fake parameters inside the context."""
    with (
        stateless._reparametrize_module(module, substitutes),
        enable_python_dispatcher(),
        fake,
        recorder,
        _module_calls_go_to(recorder),
        _custom_gradients_go_to(recorder),
        _uncached(),
    ):
        yield


@contextlib.contextmanager
def _uncached() -> Iterator[None]:
    """Have transformers' models compute what they would keep for later calls, where a fake tensor must not turn up."""
    original = pytorch_utils.is_torchdynamo_compiling
    pytorch_utils.is_torchdynamo_compiling = lambda: True
    try:
        yield
    finally:
        pytorch_utils.is_torchdynamo_compiling = original


@contextlib.contextmanager
def _module_calls_go_to(recorder: Recording) -> Iterator[None]:
    original = nn.Module.__call__
    nn.Module.__call__ = lambda module, *a, **k: recorder.module_call(original, module, a, k)
    try:
        yield
    finally:
        nn.Module.__call__ = original


@contextlib.contextmanager
def _custom_gradients_go_to(recorder: Recording) -> Iterator[None]:
    original: Any = torch.autograd.Function.__dict__["apply"]
    watched = classmethod(lambda function, *a, **k: recorder.custom_gradient(original.__func__, function, a, k))
    torch.autograd.Function.apply = watched
    try:
        yield
    finally:
        torch.autograd.Function.apply = original


def _pruned(recorder: Recording, outputs: set[int], batch: str, compute: str) -> g.Graph:
    """Return the graph without nodes that no output depends on; inputs stay. Its output is the last one."""
    live = set(outputs)
    for node in reversed(recorder.nodes):
        if node.id in live:
            live.update(node.reads)
    nodes = tuple(node for node in recorder.nodes if node.id in live or node.kind == g.INPUT)
    return g.Graph(batch=batch, inputs=recorder.inputs, output=max(outputs), nodes=nodes, units=(), compute=compute)


def _short(error: Exception) -> str:
    line = str(error).strip().splitlines()[0] if str(error).strip() else "no message"
    return line if len(line) <= 160 else line[:157] + "..."
