"""Records a model: runs it once on fake tensors with a symbolic batch size and keeps every operation.

Leaf modules are recorded as one call each, torch functions between them one by one. Nothing is computed and no weight
is needed, so a model of any size is recorded in seconds, and one recording serves every batch size.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.nn.utils import stateless
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils import _pytree as pytree

from fleetune.errors import Refused
from fleetune.models import graph as g
from fleetune.models.operations import (
    REFLECTED_OPERATORS,
    NodeRef,
    SizeEvaluator,
    SizeExpression,
    bind_argument,
    is_allowed,
    references,
)
from fleetune.models.randomness import like_random_output

# Functions that read a tensor's properties are not recorded.
PROPERTIES = {
    "__get__", "size", "dim", "numel", "is_floating_point", "is_complex", "stride", "is_contiguous", "element_size",
    "ndimension", "__len__", "get_device", "data_ptr", "__repr__", "__format__", "__hash__", "storage_offset",
    "is_same_size", "requires_grad_", "_is_view", "__set__", "type_as_property", "is_inference",
}  # fmt: skip
IN_PLACE = {f"__i{name}__": f"__{name}__" for name in REFLECTED_OPERATORS}


def record_model(model: nn.Module, samples: Mapping[str, torch.Tensor], leaf_names: set[str]) -> g.Graph:
    """Record `model(**samples).logits` (or its first output); the model may live on the meta device.

    samples: real tensors of at least 2 samples each, used for shapes and dtypes only. The returned graph has no units.
    Refused for a model that cannot be recorded, naming the operation.
    """
    name = type(model).__name__
    environment = ShapeEnv()
    fake = FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True)
    inputs = {key: _fake_input(fake, value) for key, value in samples.items()}
    batch = str(next(iter(inputs.values())).shape[0].node.expr)
    try:
        recorder = _Recorder(model, leaf_names, environment, batch)
        substitutes = _fake_state(model, fake, recorder)
        for key, value in inputs.items():
            recorder.keep_input(key, value)
        with (
            stateless._reparametrize_module(model, substitutes),
            enable_python_dispatcher(),
            fake,
            recorder,
            _module_calls_go_to(recorder),
            _custom_gradients_go_to(recorder),
        ):
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
    return _pruned(recorder, {output}, batch)


StandIn = Callable[[torch.Tensor], torch.Tensor]


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
    recorder = _Recorder(module, leaf_names, environment, str(samples.node.expr))
    recorder.stand_ins = stand_ins
    try:
        substitutes = _fake_state(module, fake, recorder)
        with fake:
            given = {number: _fake_value(graph, number, samples) for number in node.reads}
        args, kwargs = bind_argument((node.args, node.kwargs), given, SizeEvaluator(graph.batch), RECORDED_SAMPLES)
        for number, value in given.items():
            recorder.keep_input(str(number), value)
        with (
            stateless._reparametrize_module(module, substitutes),
            enable_python_dispatcher(),
            fake,
            recorder,
            _module_calls_go_to(recorder),
            _custom_gradients_go_to(recorder),
        ):
            result = module(*args, **kwargs)
            recorder.refuse_branches()
        written = recorder.write(result)
    except Refused:
        raise
    except Exception as error:  # the model's own code may raise anything on symbolic shapes
        raise Refused(f"{type(error).__name__}: {_short(error)}") from error
    return RecordedCall(_pruned(recorder, set(references(written)), str(samples.node.expr)), written)


RECORDED_SAMPLES = 4
"""Samples that a recording is made with; any number above 1 gives the same."""


def _fake_value(graph: g.Graph, number: int, samples: torch.SymInt) -> torch.Tensor:
    """Return a fake tensor as the graph's node makes it, for a symbolic number of samples."""
    value = graph.value(number)
    if any(not size.isdigit() and size != graph.batch for size in value.shape):
        raise Refused(f"it is given a tensor of shape {' x '.join(value.shape)}, which cannot be recorded")
    sizes: Any = [samples if size == graph.batch else int(size) for size in value.shape]
    return torch.empty(sizes, dtype=getattr(torch, value.dtype)).requires_grad_(value.gradient)


class _Recorder(TorchFunctionMode):
    """Intercepts torch functions and leaf modules and appends one node per operation.

    Refused are three things that a list of operations cannot express: a tensor that is read after it was changed in
    place through another name (an item assignment, a view), Python code that branches on the number of samples, and a
    custom gradient (torch.autograd.Function), whose forward runs as if under no_grad. Inside a leaf module all three
    are allowed.
    """

    def __init__(self, model: nn.Module, leaf_names: set[str], environment: ShapeEnv, batch: str) -> None:
        super().__init__()
        self._environment, self._batch = environment, batch
        self.stand_ins: Mapping[str, StandIn] = {}
        self._decisions = 0  # number of guards on the batch size made inside operations
        self._versions: dict[int, int] = {}  # version of every recorded tensor when it was made
        self._before: dict[int, int] = {}  # versions of the current operation's inputs
        self.nodes: list[g.Node] = []
        self.inputs: dict[str, int] = {}
        self.parameters: dict[int, str] = {}
        self._names = {module: name for name, module in model.named_modules()}
        self._leaf_names = leaf_names
        self.made: dict[int, int] = {}
        self._alive: list[torch.Tensor] = []  # ids are unique only while the tensors live
        self._inside = 0
        self._draws: list[g.RandomDraw] = []  # draws of the current operation

    def keep_input(self, name: str, value: torch.Tensor) -> None:
        self.inputs[name] = self._add(g.INPUT, name, (), {}, value)

    def reference(self, tensor: torch.Tensor) -> NodeRef:
        made = self.made.get(id(tensor))
        if made is None:
            parameter = self.parameters.get(id(tensor))
            if parameter is None:
                raise Refused(f"a tensor of shape {tuple(tensor.shape)} appears that no recorded operation made")
            made = self._add(g.ATTRIBUTE, parameter, (), {}, tensor)
        if self._before.get(id(tensor), tensor._version) != self._versions[id(tensor)]:
            raise Refused(f"a tensor of shape {tuple(tensor.shape)} is read after it was changed in place elsewhere")
        value = self.nodes[made].value
        if tensor.requires_grad and value is not None and not value.gradient:
            raise Refused(
                f"a tensor of shape {tuple(tensor.shape)} got its gradient only after the operation that made it (a "
                "torch.autograd.Function, or requires_grad_)"
            )
        return NodeRef(made)

    def refuse_branches(self) -> None:
        """Refuse if the model's own Python code has branched on the number of samples since the last operation."""
        guards = self._environment.guards
        if len(guards) > self._decisions:
            raise Refused(f"it branches on the number of samples: {guards[self._decisions].expr}")

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._inside:
            self._keep_draw(func, args, kwargs)
            return func(*args, **kwargs)
        with self._operation(args, kwargs):
            self._keep_draw(func, args, kwargs)
            out = func(*args, **kwargs)
            name = getattr(func, "__name__", str(func))
            tensors = _tensors(out)
            if name in PROPERTIES or not tensors:
                unknown = [t for t in tensors if id(t) not in self.made and id(t) not in self.parameters]
                if name == "__get__" and unknown:
                    raise Refused(f"{resolve_name(func) or name} makes a tensor from a property")
                return out
            if kwargs.get("out") is not None:
                raise Refused(f"{name} writes into a tensor that it is given (out=)")
            kwargs = {key: False if key == "inplace" else value for key, value in kwargs.items()}
            self._add_call(g.FUNCTION, self._spelled(func, name), args, kwargs, out)
        return out

    def _keep_draw(self, func: Any, args: Any, kwargs: Any) -> None:
        """Record the random tensor that the current operation draws, if any."""
        drawn = like_random_output(func, args, kwargs)
        if drawn is not None:
            self._draws.append(g.RandomDraw(shape=tuple(str(size) for size in drawn.shape), order=_memory_order(drawn)))

    def custom_gradient(self, call: Any, function: type, args: Any, kwargs: Any) -> Any:
        """Replace Function.apply: Refused between leaf modules, since only its forward could be recorded."""
        if not self._inside:
            raise Refused(
                f"{function.__name__} computes its gradient by itself (a torch.autograd.Function), which a list of "
                "operations cannot express"
            )
        return call(function, *args, **kwargs)

    def module_call(self, call: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
        name = self._names.get(module, "")
        if self._inside or name not in self._leaf_names:
            return call(module, *args, **kwargs)
        with self._operation(args, kwargs):
            out = self.stand_ins[name](*args) if name in self.stand_ins else call(module, *args, **kwargs)
            changed = [t for t in _tensors((args, kwargs)) if t._version != self._before[id(t)]]
            if changed and not (getattr(module, "inplace", False) and out is changed[0]):
                raise Refused(f"module {name} changes its input in place")
            self._add_call(g.MODULE, name, args, kwargs, out)
        return out

    def _spelled(self, func: Any, name: str) -> str:
        """Return the function's dotted name; in-place functions become pure ones, since their input may be received."""
        target = resolve_name(func) or f"{func.__module__}.{name}"
        twin = IN_PLACE.get(name) or (name[:-1] if name.endswith("_") and not name.endswith("__") else None)
        pure = target if twin is None else target[: -len(name)] + twin
        if not is_allowed(pure):
            raise Refused(f"{target} cannot be recorded; make the module around it a leaf")
        return pure

    def _add_call(self, kind: str, target: str, args: Any, kwargs: Any, out: Any) -> None:
        if isinstance(out, torch.Tensor):
            self._add(kind, target, args, kwargs, out)
            return
        whole = self._add(kind, target, args, kwargs, None)
        for position, leaf in enumerate(pytree.tree_leaves(out)):
            if isinstance(leaf, torch.Tensor):
                self._add(g.ITEM, str(position), (NodeRef(whole),), {}, leaf)

    def _add(self, kind: str, target: str, args: Any, kwargs: Any, out: torch.Tensor | None) -> int:
        written = tuple(self.write(a) for a in args), {k: self.write(a) for k, a in kwargs.items()}
        number = len(self.nodes)
        value = None
        if out is not None:
            shape = tuple(self._size(size) for size in out.shape)
            value = g.Value(shape=shape, dtype=str(out.dtype).removeprefix("torch."), gradient=out.requires_grad)
            self.made[id(out)] = number
            self._versions[id(out)] = out._version
            self._alive.append(out)
        calls = kind in (g.MODULE, g.FUNCTION)
        self.nodes.append(g.Node(number, kind, target, *written, value, tuple(self._draws) if calls else ()))
        return number

    def _size(self, size: int | torch.SymInt) -> str:
        """Return a size as text; Refused if it depends on more than the number of samples."""
        if isinstance(size, torch.SymInt) and any(str(s) != self._batch for s in size.node.expr.free_symbols):
            raise Refused("it makes a tensor whose shape depends on the data")
        return str(size)

    def write(self, argument: Any) -> Any:
        """Return an argument with every tensor replaced by a NodeRef and every symbolic size by a SizeExpression."""
        if isinstance(argument, torch.Tensor):
            return self.reference(argument)
        if isinstance(argument, torch.SymInt | torch.SymFloat):
            expression = argument.node.expr
            if isinstance(argument, torch.SymFloat):
                if expression.free_symbols:
                    raise Refused(f"it calculates with a number that is known only when it runs: {expression}")
                return float(expression)
            return SizeExpression(self._size(argument)) if expression.free_symbols else int(expression)
        if isinstance(argument, tuple | list):
            return (
                type(argument)(map(self.write, argument))
                if type(argument) in (tuple, list)
                else tuple(map(self.write, argument))
            )
        if isinstance(argument, dict):
            return {key: self.write(item) for key, item in argument.items()}
        if isinstance(argument, slice):
            return slice(*map(self.write, (argument.start, argument.stop, argument.step)))
        return argument

    @contextlib.contextmanager
    def _operation(self, args: Any, kwargs: Any) -> Iterator[None]:
        """Treat all calls inside the context as one operation."""
        self.refuse_branches()
        self._inside += 1
        try:
            self._before = {id(t): t._version for t in _tensors((args, kwargs))}
            yield
        finally:
            self._inside -= 1
            self._draws.clear()
            self._decisions = len(self._environment.guards)


def _memory_order(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return dimensions from the outermost to the innermost in memory."""
    strides = [s.node.hint if isinstance(s, torch.SymInt) else s for s in tensor.stride()]
    return tuple(sorted(range(tensor.dim()), key=lambda dim: -strides[dim]))


def _tensors(argument: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(argument) if isinstance(leaf, torch.Tensor)]


def _fake_input(fake: FakeTensorMode, value: torch.Tensor) -> torch.Tensor:
    """Return a fake tensor of the same shape whose first dimension is the batch symbol."""
    kinds = [DimDynamic.DUCK if d == 0 else DimDynamic.STATIC for d in range(value.dim())]
    return fake.from_tensor(value, symbolic_context=StatelessSymbolicContext(dynamic_sizes=kinds))


def _fake_state(model: nn.Module, fake: FakeTensorMode, recorder: _Recorder) -> dict[str, torch.Tensor]:
    """Return fake tensors for parameters and buffers by name, shared as in the model."""
    stand_ins: dict[str, torch.Tensor] = {}
    made: dict[int, torch.Tensor] = {}
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    with fake:
        for name, tensor in named:
            if id(tensor) not in made:
                empty = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
                is_parameter = isinstance(tensor, nn.Parameter)
                made[id(tensor)] = nn.Parameter(empty, requires_grad=tensor.requires_grad) if is_parameter else empty
                recorder.parameters[id(made[id(tensor)])] = name
            stand_ins[name] = made[id(tensor)]
    return stand_ins


@contextlib.contextmanager
def _module_calls_go_to(recorder: _Recorder) -> Iterator[None]:
    original = nn.Module.__call__
    nn.Module.__call__ = lambda module, *a, **k: recorder.module_call(original, module, a, k)
    try:
        yield
    finally:
        nn.Module.__call__ = original


@contextlib.contextmanager
def _custom_gradients_go_to(recorder: _Recorder) -> Iterator[None]:
    original: Any = torch.autograd.Function.__dict__["apply"]
    watched = classmethod(lambda function, *a, **k: recorder.custom_gradient(original.__func__, function, a, k))
    torch.autograd.Function.apply = watched
    try:
        yield
    finally:
        torch.autograd.Function.apply = original


def _pruned(recorder: _Recorder, outputs: set[int], batch: str) -> g.Graph:
    """Return the graph without nodes that no output depends on; inputs stay. Its output is the last one."""
    live = set(outputs)
    for node in reversed(recorder.nodes):
        if node.id in live:
            live.update(node.reads)
    nodes = tuple(node for node in recorder.nodes if node.id in live or node.kind == g.INPUT)
    return g.Graph(batch=batch, inputs=recorder.inputs, output=max(outputs), nodes=nodes, units=())


def _short(error: Exception) -> str:
    line = str(error).strip().splitlines()[0] if str(error).strip() else "no message"
    return line if len(line) <= 160 else line[:157] + "..."
