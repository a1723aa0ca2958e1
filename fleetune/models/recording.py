"""The operations of a model while it runs once on fake tensors, appended one by one; `recorder` starts and ends it."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils import _pytree as pytree

from fleetune.errors import Refused
from fleetune.models import graph as g
from fleetune.models.operations import (
    AT_MARK,
    REFLECTED_OPERATORS,
    WITH_ITEM,
    NodeRef,
    SizeExpression,
    at_mark,
    is_allowed,
    torch_function,
)
from fleetune.models.randomness import draws_whole, like_random_output

StandIn = Callable[[torch.Tensor], torch.Tensor]

# Functions that read a tensor's properties are not recorded.
PROPERTIES = {
    "__get__", "size", "dim", "numel", "is_floating_point", "is_complex", "stride", "is_contiguous", "element_size",
    "ndimension", "__len__", "get_device", "data_ptr", "__repr__", "__format__", "__hash__", "storage_offset",
    "is_same_size", "requires_grad_", "_is_view", "__set__", "type_as_property", "is_inference",
}  # fmt: skip
IN_PLACE = {f"__i{name}__": f"__{name}__" for name in REFLECTED_OPERATORS}
ASSIGNMENTS = ("__setitem__", "copy_")


class _Owner(NamedTuple):
    """A tensor of which an item is changed in place."""

    tensor: torch.Tensor
    before: NodeRef
    index: Any


class Recording(TorchFunctionMode):
    """Intercepts torch functions and leaf modules and appends one node per operation.

    Refused are three things that a list of operations cannot express: a tensor that is read after it was changed in
    place through another name (a view; items are followed), Python code that branches on the number of samples, and a
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
        self._items: dict[int, tuple[torch.Tensor, Any]] = {}  # item -> the tensor that it is a view of, and its index
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
        name = getattr(func, "__name__", str(func))
        if func is torch.unique_consecutive:
            return args[0].new_empty(1)  # models count it to check their marks, as AT_MARK does; it cannot be read
        if name == "__getitem__" and _picks_marks(*args):
            func, name, args = at_mark, AT_MARK, (args[0], args[1][0])
        with self._operation(args, kwargs):
            self._keep_draw(func, args, kwargs)
            owners = self._owners(name, args)
            if name in ASSIGNMENTS:
                return self._assign(func, (*args, *kwargs.values()), owners)
            out = func(*args, **kwargs)
            tensors = _tensors(out)
            if name in PROPERTIES or not tensors:
                unknown = [t for t in tensors if id(t) not in self.made and id(t) not in self.parameters]
                if name == "__get__" and unknown:
                    raise Refused(f"{resolve_name(func) or name} makes a tensor from a property")
                return out
            if kwargs.get("out") is not None:
                raise Refused(f"{name} writes into a tensor that it is given (out=)")
            kwargs = {key: False if key == "inplace" else value for key, value in kwargs.items()}
            target = name if name == AT_MARK else self._spelled(func, name)
            if (name in IN_PLACE or _ends_in_place(name)) and isinstance(out, torch.Tensor):
                self._add_pure(target, args, kwargs, out)
            else:
                self._add_call(g.FUNCTION, target, args, kwargs, out)
            self._pass_on(owners, out)
            if name == "__getitem__" and out._is_view():
                self._items[id(out)] = args[0], args[1]
        return out

    def _owners(self, name: str, args: Any) -> list[_Owner]:
        """Return the tensors that a call changes because it changes an item of theirs, the nearest first."""
        found: list[_Owner] = []
        changes = name in ASSIGNMENTS or name in IN_PLACE or _ends_in_place(name)
        item = args[0] if changes and args else None
        while id(item) in self._items:
            owner, index = self._items[id(item)]
            found.append(_Owner(owner, self.reference(owner), index))
            item = owner
        return found

    def _assign(self, func: Any, args: Any, owners: list[_Owner]) -> Any:
        """Record x[index] = value, or x.copy_(value)."""
        changed, index, value = args if func is torch.Tensor.__setitem__ else (args[0], Ellipsis, args[1])
        before = self.reference(changed)
        written = self.write(index), self.write(value)
        out = func(*args)
        self._add(g.FUNCTION, WITH_ITEM, (before, *written), {}, changed)
        self._pass_on(owners, changed)
        return out

    def _pass_on(self, owners: list[_Owner], item: Any) -> None:
        """Record that an item that was changed in place changed the tensors that it belongs to."""
        for owner in owners:
            self._add(
                g.FUNCTION, WITH_ITEM, (owner.before, owner.index, NodeRef(self.made[id(item)])), {}, owner.tensor
            )
            item = owner.tensor

    def _keep_draw(self, func: Any, args: Any, kwargs: Any) -> None:
        """Record the random tensor that the current operation draws, if any. A size "?": it cannot be divided."""
        drawn = like_random_output(func, args, kwargs)
        if drawn is not None:
            self._draws.append(g.RandomDraw(shape=tuple(str(size) for size in drawn.shape), order=_memory_order(drawn)))
        elif draws_whole(func, args, kwargs):
            self._draws.append(g.RandomDraw(shape=("?",), order=(0,)))

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
        twin = IN_PLACE.get(name) or (name[:-1] if _ends_in_place(name) else None)
        pure = target if twin is None else target[: -len(name)] + twin
        if not is_allowed(pure):
            raise Refused(f"{target} cannot be recorded; make the module around it a leaf")
        return pure

    def _add_pure(self, target: str, args: Any, kwargs: Any, out: torch.Tensor) -> None:
        """Record the pure twin of an operation in place, and the conversion to the type that the latter keeps."""
        pure = torch_function(target)(*args, **kwargs)
        if pure.dtype == out.dtype:
            self._add(g.FUNCTION, target, args, kwargs, out)
            return
        self._add(g.FUNCTION, target, args, kwargs, pure)
        self._add(g.FUNCTION, "torch.Tensor.to", (pure, out.dtype), {}, out)

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


def _ends_in_place(name: str) -> bool:
    """Return whether a function changes its first argument, by its name: `add_`."""
    return name.endswith("_") and not name.endswith("__")


def _picks_marks(tensor: torch.Tensor, index: Any) -> bool:
    """Return whether a tensor's index is (mask of samples and tokens, all of the rest)."""
    if not isinstance(index, tuple) or len(index) != 2 or index[1] != slice(None) or tensor.dim() != 3:
        return False
    return isinstance(index[0], torch.Tensor) and index[0].dtype == torch.bool and index[0].dim() == 2


def _tensors(argument: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(argument) if isinstance(leaf, torch.Tensor)]
