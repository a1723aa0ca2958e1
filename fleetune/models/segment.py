"""Runs some units of a recorded model, owning only their modules and weights."""

from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn
from torch.utils import _pytree as pytree

from fleetune.linux import trim_heap
from fleetune.models import graph as g
from fleetune.models.compute_copies import ComputeCopies, computed_type, halved_parameters, in_type, place
from fleetune.models.nf4 import PACKED, as_held
from fleetune.models.operations import SizeEvaluator, bind_argument, on_device, references, torch_function
from fleetune.models.randomness import PartDraws, RandomContext, ShardedDraws
from fleetune.models.recompute import run_recomputed
from fleetune.models.skeleton import canonical_names
from fleetune.models.units import crossing_values
from fleetune.models.weight_portions import LARGE_ELEMENTS, portions
from fleetune.models.weights import WeightReader, assign_tensor
from fleetune.program.blocks import block_runs

Values = dict[int, torch.Tensor]


class _Operation(NamedTuple):
    """A node of the graph, ready to be called."""

    node: int
    call: Any
    args: Any
    """As recorded: references to other nodes stand for their values."""
    kwargs: Any


class _Part(NamedTuple):
    """Consecutive units of a segment."""

    units: tuple[str, ...]
    inputs: tuple[int, ...]
    """Values that it reads of others, if its activations are recomputed."""
    outputs: tuple[int, ...]
    """Values of its own that later nodes read, or that leave the segment; only if recomputed."""
    recomputed: bool


class GatedOperation(Protocol):
    """Runs an operation with some heads of its block left out, in the micro-batches to which that applies."""

    def applies(self, micro_batch: int) -> bool:
        """Return False for a micro-batch in which all heads are full: the operation itself is run."""

    def run(self, held: Mapping[int, Any], samples: int, micro_batch: int, parts: PartDraws) -> Any:
        """Return what the operation returns. held: values by node; samples: the number that this device holds."""


class SegmentRunner:
    """Consecutive units of a graph with their weights.

    `input_values`: values that must come in. `output_values`: values that cross the cut behind it (those that it only
    passes on included), or the output. `parameters` and `buffers` are by the whole model's canonical names. Whatever
    changes parameters calls `drop_copies` before the next run.
    """

    def __init__(self, graph: g.Graph, units: tuple[str, ...], skeleton: nn.Module, device: torch.device) -> None:
        """skeleton: the whole model on the meta device, of which only the modules of `units` are kept."""
        self.graph = graph
        self.units = tuple(unit for unit in graph.units if unit.name in set(units))
        self.device = device
        first, last = self.units[0].nodes[0], self.units[-1].nodes[-1]
        before = max((node.id for node in graph.nodes if node.id < first and node.kind != g.ATTRIBUTE), default=-1)
        self.is_first = self.units[0] is graph.units[0]
        self.is_last = self.units[-1] is graph.units[-1]
        self.input_values = tuple(sorted(graph.inputs.values())) if self.is_first else crossing_values(graph, before)
        self.output_values = (graph.output,) if self.is_last else crossing_values(graph, last)
        self.differentiates_inputs = True
        """False if nothing below the segment needs its gradients, and its first units keep no graph."""
        self._without_graph: frozenset[str] = frozenset()
        self._sizes = SizeEvaluator(graph.batch)
        self._modules: dict[str, nn.Module] = {}
        self._attributes: dict[int, str] = {}
        self._gated: dict[int, GatedOperation] = {}
        self.runs_all_heads = False
        """True while all heads run in full, whatever the gates say."""
        self._program = {unit.name: self._compile(unit, skeleton) for unit in self.units}
        self._expired = self._expired_values()
        self._recomputes = False
        self._parts = self._divided()
        self._collect_state(skeleton)

    @property
    def modules(self) -> dict[str, nn.Module]:
        """Leaf modules by name in the whole model."""
        return self._modules

    def gate(self, operations: Mapping[int, GatedOperation]) -> None:
        """Replace operations of these nodes in runs with draws, and so with a micro-batch; see `models.gates`."""
        self._gated = dict(operations)

    def train_only(self, trained: Collection[str], parameters: Collection[str]) -> None:
        """Train only these units' parameters, from now on.

        parameters: the names of these units' parameters that are to be trained.

        The backward ends at the first trained unit: nothing below keeps a graph, and the segment's inputs get no
        gradient unless their first reader is trained.
        """
        first = next((at for at, unit in enumerate(self.units) if unit.name in trained), len(self.units))
        self._without_graph = frozenset(unit.name for unit in self.units[:first])
        self.differentiates_inputs = first == 0
        for name, parameter in self.parameters.items():
            parameter.requires_grad_(name in parameters)
        self._parts = self._divided()
        self.drop_copies()

    def recompute(self) -> None:
        """Keep of the activations inside blocks only the blocks' inputs, from now on."""
        self._recomputes = True
        self._parts = self._divided()

    def drop_copies(self) -> None:
        """Let the next run compute with what the parameters are then."""
        if self._copies is not None:
            self._copies.drop()

    def renew_copies(self) -> None:
        """Make the copies of parameters that have changed."""
        if self._copies is not None:
            self._copies.drop()
            self._copies.of(self.parameters)

    def read_weights(self) -> Mapping[str, torch.Tensor]:
        """Return the parameters as operations read them: the copies in half precision of those that have one."""
        if self._copies is None:
            return self.parameters
        return {**self.parameters, **self._copies.of(self.parameters)}

    def load(self, weights: WeightReader, frozen: dict[str, torch.Tensor] | None = None) -> None:
        """Load this segment's tensors, and no others, onto its device.

        frozen: frozen weights by name that other segments of this process have loaded; they are used and not loaded
        again, and this segment's are added.
        """
        held = {} if frozen is None else frozen
        wanted = {canonical for canonical in self._owners if canonical in self.parameters or canonical in self.buffers}
        trained = {name for name, parameter in self.parameters.items() if parameter.requires_grad}
        found = {name: held[name] for name in wanted - trained if name in held}
        for canonical, tensor in found.items():
            self._put(canonical, tensor)
        missing, state = wanted - set(found), {**self.parameters, **self.buffers}
        held_as = {name: state[name] for name in missing}
        for names in portions(held_as) if self._converts else [set(held_as)]:
            for canonical, tensor in weights.read(names).items():
                self._put(canonical, self._as_held(canonical, tensor))
                if canonical in self.parameters and not self.parameters[canonical].requires_grad:
                    held[canonical] = self.parameters[canonical].detach()
        if self._converts:
            trim_heap()
        self.drop_copies()

    @property
    def _converts(self) -> bool:
        """True if weights are read in another type than they are held in."""
        return self._copies is not None or any(parameter.dtype == PACKED for parameter in self.parameters.values())

    def _as_held(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor that was read as this segment holds it."""
        here, held = tensor.to(self.device), self.parameters.get(name)
        if held is not None:
            here = as_held(here, held)
            here = here if self._copies is None else here.to(held.dtype)
        return here.clone() if here is tensor and self._converts and here.numel() < LARGE_ELEMENTS else here

    def put(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Overwrite parameters and buffers of this segment in place; other names are ignored."""
        with torch.no_grad():
            for name, tensor in tensors.items():
                held = self.parameters.get(name)
                target = held if held is not None else self.buffers.get(name)
                if target is not None:
                    target.copy_(tensor.to(target.device))
        self.drop_copies()

    def train(self, mode: bool = True) -> None:
        """Set training or evaluation mode."""
        for module in self._modules.values():
            module.train(mode)

    def run(self, values: Mapping[int, torch.Tensor], samples: int, draws: RandomContext | None = None) -> Values:
        """Run the forward: node -> tensor in, node -> tensor out. samples: the number that this device holds."""
        held: dict[int, Any] = {number: self._as_computed(number, value) for number, value in values.items()}
        read = self.read_weights()
        for number, name in self._attributes.items():
            held[number] = read[name] if name in read else self.buffers[name]
        part = draws is not None and samples != draws.samples
        sliced = ShardedDraws(draws, samples, self.graph.batch) if draws is not None and part else None

        def run(part: _Part, held: dict[int, Any]) -> None:
            installed = self._copies.installed(self.parameters) if self._copies is not None else nullcontext()
            with installed, sliced or nullcontext():
                for unit in part.units:
                    if draws is not None:
                        draws.seed_unit(unit)
                    parts = PartDraws(unit, draws, sliced) if draws is not None else None
                    with torch.no_grad() if unit in self._without_graph else nullcontext():
                        self._run_unit(self._program[unit], held, samples, parts)

        for each in self._parts:
            if each.recomputed and torch.is_grad_enabled():
                self._run_recomputed(each, held, run)
            else:
                run(each, held)
        return {number: held[number] for number in self.output_values}

    def _as_computed(self, number: int, value: torch.Tensor) -> torch.Tensor:
        """Return an input of the graph, such as pixels, in the type that it was recorded in."""
        if self._copies is None or self.graph.node(number).kind != g.INPUT:
            return value
        converted: torch.Tensor = in_type(value, getattr(torch, self.graph.value(number).dtype))
        return converted

    def _run_recomputed(self, part: _Part, held: dict[int, Any], run: Callable[[_Part, dict[int, Any]], None]) -> None:
        """Run a part that keeps its inputs only; `held` changes as by `run`."""

        def made(own: dict[int, Any]) -> dict[int, Any]:
            run(part, own)
            return {number: own[number] for number in part.outputs}

        called = (op.node for unit in part.units for op in self._program[unit])
        modules = (self._modules[node.target] for node in map(self.graph.node, called) if node.kind == g.MODULE)
        held |= run_recomputed(made, {number: held[number] for number in part.inputs}, modules)
        for number in (op.node for unit in part.units for op in self._program[unit]):
            for expired in self._expired.get(number, ()):
                held.pop(expired, None)

    def _run_unit(
        self, operations: list[_Operation], held: dict[int, Any], samples: int, parts: PartDraws | None
    ) -> None:
        """Run the operations of one unit; `held` gets their values and loses those that no later node reads."""
        for number, call, args, kwargs in operations:
            gated = None if self.runs_all_heads else self._gated.get(number)
            if gated is not None and parts is not None and gated.applies(parts.micro_batch):
                held[number] = gated.run(held, samples, parts.micro_batch, parts)
            else:
                bound = bind_argument(args, held, self._sizes, samples)
                if parts is not None:
                    parts.expect(self.graph.node(number).draws)
                held[number] = call(*bound, **bind_argument(kwargs, held, self._sizes, samples))
            for expired in self._expired.get(number, ()):
                held.pop(expired, None)

    def _compile(self, unit: g.GraphUnit, skeleton: nn.Module) -> list[_Operation]:
        operations = []
        for number in unit.nodes:
            node = self.graph.node(number)
            if node.kind == g.MODULE:
                self._modules.setdefault(node.target, skeleton.get_submodule(node.target))
            call = executable(node, skeleton)
            for read in node.reads:
                if self.graph.node(read).kind == g.ATTRIBUTE:
                    self._attributes[read] = self.graph.node(read).target
            operations.append(_Operation(number, call, *on_device((node.args, node.kwargs), self.device)))
        return operations

    def _expired_values(self) -> dict[int, tuple[int, ...]]:
        """Return node -> values that no later node reads."""
        last: dict[int, int] = {}
        for operations in self._program.values():
            for number, _, args, kwargs in operations:
                for read in references((args, kwargs)):
                    last[read] = number
        expired: dict[int, list[int]] = {}
        for read, number in last.items():
            if read not in self.output_values:
                expired.setdefault(number, []).append(read)
        return {number: tuple(reads) for number, reads in expired.items()}

    def _divided(self) -> list[_Part]:
        """Return the units in the parts that are recomputed, or not, as one."""
        names = [unit.name for unit in self.units]
        if not self._recomputes:
            return [_Part(tuple(names), (), (), recomputed=False)]
        parts = []
        for first, end, block in block_runs(names):
            frozen = [name for name in names[first:end] if name in self._without_graph]
            rest = tuple(names[first + len(frozen) : end])
            if frozen:
                parts.append(_Part(tuple(frozen), (), (), recomputed=False))
            if rest:
                parts.append(_Part(rest, *self._ends(rest), recomputed=True) if block else _Part(rest, (), (), False))
        return parts

    def _ends(self, units: tuple[str, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the values that enter some units, and those of them that are read behind these."""
        own = [op for unit in units for op in self._program[unit]]
        made = {op.node for op in own}
        reads = {read for op in own for read in references((op.args, op.kwargs))}
        inside = set(units)
        behind = {
            read
            for unit, operations in self._program.items()
            if unit not in inside
            for op in operations
            for read in references((op.args, op.kwargs))
        }
        return tuple(sorted(reads - made)), tuple(sorted(made & (behind | set(self.output_values))))

    def _collect_state(self, skeleton: nn.Module) -> None:
        canonical = canonical_names(skeleton)
        self._owners: dict[str, list[tuple[nn.Module, str]]] = {}
        self.parameters: dict[str, nn.Parameter] = {}
        self.buffers: dict[str, torch.Tensor] = {}
        named = [(f"{leaf}.{n}", m, n) for leaf, m in self._modules.items() for n in _state_names(m)]
        for full, module, inner in named:
            self._owners.setdefault(canonical[full], []).append((module, inner))
        for name in self._attributes.values():
            self._owners.setdefault(canonical[name], [])
        whole = {**dict(skeleton.named_parameters()), **dict(skeleton.named_buffers())}
        self.tied = {c for c in self._owners if sum(1 for other in canonical.values() if other == c) > 1}
        for name in self._owners:
            tensor = whole[name]
            if isinstance(tensor, nn.Parameter):
                self.parameters[name] = tensor
            else:
                self.buffers[name] = tensor
        self._attributes = {number: canonical[name] for number, name in self._attributes.items()}
        dtype = computed_type(self.graph.compute)
        places = {n: [place(m, inner) for m, inner in self._owners[n]] for n in self.parameters} if dtype else {}
        self._copies = ComputeCopies(dtype, halved_parameters(skeleton), places) if dtype else None

    def _put(self, name: str, tensor: torch.Tensor) -> None:
        if name in self.parameters:
            parameter = nn.Parameter(tensor, requires_grad=self.parameters[name].requires_grad)
            self.parameters[name] = parameter
        else:
            self.buffers[name] = tensor
        for module, inner in self._owners[name]:
            assign_tensor(module, inner, tensor)
            if name in self.parameters:  # all owners of a tied weight share one object
                *path, last = inner.split(".")
                module.get_submodule(".".join(path))._parameters[last] = self.parameters[name]


def _state_names(module: nn.Module) -> list[str]:
    parameters = [n for n, _ in module.named_parameters(remove_duplicate=False)]
    return parameters + [n for n, _ in module.named_buffers(remove_duplicate=False)]


def executable(node: g.Node, model: nn.Module) -> Any:
    """Return what a node of a recorded graph calls. model: the model, or module, that was recorded."""
    call: Any
    if node.kind == g.MODULE:
        call = model.get_submodule(node.target)
        if getattr(call, "inplace", False):
            call.inplace = False  # its input may be a received value
    elif node.kind == g.ITEM:
        call = _item(int(node.target))
    else:
        call = torch_function(node.target)
    return call if node.value is None or node.value.gradient else _without_gradient(call)


def _item(position: int) -> Any:
    return lambda whole: pytree.tree_leaves(whole)[position]


def _without_gradient(call: Any) -> Any:
    """Wrap a call that was recorded under no_grad: its result is detached."""

    def detached(*args: Any, **kwargs: Any) -> Any:
        out = call(*args, **kwargs)
        return out.detach() if out.requires_grad else out

    return detached
