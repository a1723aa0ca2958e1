"""The subnets of D2FT (Ding et al., "You Don't Need All Attentions", §II-A1): one attention head each, with as
large a part of its block's feed-forward layer.

A block is a member of an outermost list of modules. Its dense layers are recognised by the order in which a run calls
them and by which of them read the same tensor: queries, keys and values (or one layer that makes all three), the layer
that joins the heads, one layer up (or two, where one gates the other), one layer down. Module names are not used: they
differ between model families.

A head has the rows of queries, keys and values that make it, and the columns that read it where heads are joined; of
the feed-forward layer the rows that make its hidden units, and the columns that read them. Parameters that all heads
share belong to none: norms, biases that are added to the sum over heads, and the matrix A of a LoRA adapter on queries,
keys or values (its gradient is zero where training starts, since B is). Rows of a LoRA adapter's B make outputs of the
layer that it changes; columns of A read its inputs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig
from transformers.pytorch_utils import Conv1D

from fleetune.errors import Refused
from fleetune.models.graph import Graph
from fleetune.models.head_mixing import Passed, holder, mixing, modules_beside
from fleetune.models.meta_run import run_on_meta
from fleetune.models.skeleton import canonical_names


@dataclass(frozen=True, slots=True)
class ParameterSlice:
    """Indices [first, end) of one dimension of a parameter."""

    parameter: str
    """Canonical name in the whole model."""
    dim: int
    first: int
    end: int

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return this part of the parameter, or of a tensor of its shape, as a view."""
        return tensor.narrow(self.dim, self.first, self.end - self.first)


@dataclass(frozen=True, slots=True)
class DenseLayer:
    """A layer y = W x + b, with its LoRA adapter if it has one."""

    name: str
    weight: str
    """Canonical name of W, which may be packed in 4 bits."""
    inputs: int
    outputs: int
    by_output: tuple[tuple[str, int], ...]
    """(Parameter, dimension of outputs) of each parameter that has one."""
    by_input: tuple[tuple[str, int], ...]
    """(Parameter, dimension of inputs) of each parameter that has one."""
    conv1d: bool
    """True for transformers' Conv1D, which stores W transposed."""

    def rows(self, first: int, end: int) -> tuple[ParameterSlice, ...]:
        """Return the slices that make outputs [first, end): rows of W and of B, entries of b."""
        return tuple(ParameterSlice(name, dim, first, end) for name, dim in self.by_output)

    def columns(self, first: int, end: int) -> tuple[ParameterSlice, ...]:
        """Return the slices that read inputs [first, end): columns of W and of A."""
        return tuple(ParameterSlice(name, dim, first, end) for name, dim in self.by_input)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of W as it is stored, packed or not."""
        return (self.inputs, self.outputs) if self.conv1d else (self.outputs, self.inputs)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Canonical names of all its parameters."""
        return tuple(dict.fromkeys(name for name, _ in (*self.by_output, *self.by_input)))


def dense_layers(skeleton: nn.Module) -> dict[nn.Module, DenseLayer]:
    """Return every dense layer by its module; an adapter belongs to the layer that it changes."""
    canonical = canonical_names(skeleton)
    found: dict[nn.Module, DenseLayer] = {}
    adapted: list[str] = []
    for name, module in skeleton.named_modules():
        if any(name.startswith(f"{outer}.") for outer in adapted):
            continue
        if hasattr(module, "lora_A"):
            adapted.append(name)
        made = _dense(name, module, canonical)
        if made is not None:
            found[module] = made
    return found


def _dense(name: str, module: nn.Module, canonical: Mapping[str, str]) -> DenseLayer | None:
    inner = "base_layer." if hasattr(module, "lora_A") else ""
    layer = module.get_submodule("base_layer") if inner else module
    if not isinstance(layer, nn.Linear | Conv1D):
        return None
    transposed = isinstance(layer, Conv1D)
    outputs_at, inputs_at = (1, 0) if transposed else (0, 1)
    by_output, by_input = [(f"{inner}weight", outputs_at)], [(f"{inner}weight", inputs_at)]
    if layer.bias is not None:
        by_output.append((f"{inner}bias", 0))
    for adapter in module.get_submodule("lora_A") if inner else ():
        by_output.append((f"lora_B.{adapter}.weight", 0))
        by_input.append((f"lora_A.{adapter}.weight", 1))
    shape = tuple(layer.weight.shape) if transposed else (layer.out_features, layer.in_features)
    return DenseLayer(
        name=name,
        weight=canonical[f"{name}.{inner}weight"],
        inputs=int(shape[inputs_at]),
        outputs=int(shape[outputs_at]),
        by_output=tuple((canonical[f"{name}.{own}"], dim) for own, dim in by_output),
        by_input=tuple((canonical[f"{name}.{own}"], dim) for own, dim in by_input),
        conv1d=transposed,
    )


SUPPORTED = (
    "supported are blocks that run queries, keys and values (three dense layers, or one Conv1D that makes them one "
    "after the other), one dense layer that joins the heads, one or two up and one down, in this order, as in ViT, "
    "BERT, RoBERTa, MiniLM, GPT-2 and Llama"
)


@dataclass(frozen=True, slots=True)
class OutputRange:
    """Outputs [first, first + width) of a dense layer."""

    layer: DenseLayer
    first: int
    width: int


@dataclass(frozen=True, slots=True)
class HalfBlock:
    """Attention or feed-forward half of a block; each head owns a part of `inner`'s outputs and `outer`'s inputs."""

    inner: tuple[OutputRange, ...]
    outer: DenseLayer

    @property
    def layers(self) -> tuple[DenseLayer, ...]:
        """All dense layers of the half, each once."""
        return (*dict.fromkeys(part.layer for part in self.inner), self.outer)


@dataclass(frozen=True, slots=True)
class TransformerBlock:
    """A transformer block."""

    name: str
    heads: int
    """Number of key/value heads; query heads that share one count as one head, since none could run alone."""
    attention: HalfBlock
    feed_forward: HalfBlock


def find_blocks(graph: Graph, skeleton: nn.Module, config: PretrainedConfig) -> tuple[TransformerBlock, ...]:
    """Return the blocks in the order in which they run; Refused, naming the first block that is not supported.

    skeleton: the whole model on the meta device.
    """
    dense = dense_layers(skeleton)
    names = _block_names(skeleton)
    calls: dict[str, list[tuple[DenseLayer, Any]]] = {}
    passed: dict[str, list[Passed]] = {}
    other = modules_beside(skeleton, dense, [layer.name for layer in dense.values()])

    def seen(module: nn.Module, given: Any) -> None:
        layer, beside = dense.get(module), other.get(module)
        called = layer or beside
        block = called and next((name for name in names if called.name.startswith(f"{name}.")), None)
        if block and layer:
            calls.setdefault(block, []).append((layer, given[0]))  # kept alive, so that its id stays unique
        elif block and beside:
            passed.setdefault(block, []).append(beside._replace(calls=len(calls.get(block, ()))))

    run_on_meta(graph, skeleton, seen)
    if not calls:
        raise Refused(f"profile.scores: {type(config).__name__} has no blocks with dense layers; {SUPPORTED}")
    own = [each.name for each in other.values()]
    return tuple(
        _block(name, _group_calls(called), config, passed.get(name, []), own) for name, called in calls.items()
    )


def _block_names(skeleton: nn.Module) -> list[str]:
    """Return the names of the members of outermost module lists."""
    found: list[str] = []
    for name, module in skeleton.named_modules():
        if isinstance(module, nn.ModuleList) and not any(name.startswith(f"{member}.") for member in found):
            found += [f"{name}.{child}" for child, _ in module.named_children()]
    return found


def _group_calls(called: list[tuple[DenseLayer, Any]]) -> list[list[DenseLayer]]:
    """Group layers in the order of their calls; those that read the same tensor form one step."""
    steps: list[list[DenseLayer]] = []
    before: Any = None
    for layer, given in called:
        if steps and given is before:
            steps[-1].append(layer)
        else:
            steps.append([layer])
        before = given
    return steps


def _block(
    name: str, steps: list[list[DenseLayer]], config: PretrainedConfig, passed: list[Passed], own: list[str]
) -> TransformerBlock:
    """passed: modules that the block calls between dense layers. own: names of modules with parameters of their own."""
    queries = getattr(config, "num_attention_heads", None)
    if not isinstance(queries, int) or queries < 1:
        raise Refused(f"profile.scores: {type(config).__name__} has no number of attention heads; {SUPPORTED}")
    heads = getattr(config, "num_key_value_heads", None) or queries
    layers = [layer for step in steps for layer in step]
    if len(set(layers)) < len(layers):
        raise Refused(
            f"profile.scores: {name} runs several times in one forward, where all blocks have to be chosen for "
            f"separately; {SUPPORTED}"
        )
    if [len(step) for step in steps] not in ([3, 1, 1, 1], [3, 1, 2, 1], [1, 1, 1, 1], [1, 1, 2, 1]):
        raise _unsupported_block(name, layers)
    (joins,), ups, (down,) = steps[1:]
    inner = _projections(steps[0], joins.inputs, heads / queries)
    fits = inner and joins.inputs % queries == 0 and queries % heads == 0 and joins.outputs == down.outputs
    if not fits or any(up.outputs != down.inputs for up in ups) or down.inputs < heads:
        raise _unsupported_block(name, layers)
    between = mixing(passed, [len(step) for step in steps], joins.inputs // queries)
    between = between or holder(own, [layer.name for layer in steps[0]])
    if between and heads > 1:
        raise Refused(
            f"profile.scores: {between} reads several heads at once, so that none could be left out without changing "
            f"the others; {SUPPORTED}"
        )
    feed_forward = HalfBlock(tuple(OutputRange(up, 0, up.outputs) for up in ups), down)
    return TransformerBlock(name, heads, HalfBlock(inner, joins), feed_forward)


def _projections(layers: list[DenseLayer], width: int, keys: float) -> tuple[OutputRange, ...]:
    """Return the output ranges of queries, keys and values; empty if the layers do not have these shapes.

    width: columns of the layer that joins the heads. keys: number of key heads per query head.
    """
    if len(layers) == 1:
        (fused,) = layers
        whole = fused.conv1d and fused.outputs == 3 * width and keys == 1
        return tuple(OutputRange(fused, number * width, width) for number in range(3)) if whole else ()
    wanted = sorted([width, round(width * keys), round(width * keys)])
    return (
        tuple(OutputRange(one, 0, one.outputs) for one in layers)
        if sorted(one.outputs for one in layers) == wanted
        else ()
    )


def _unsupported_block(name: str, layers: list[DenseLayer]) -> Refused:
    shapes = ", ".join(f"{layer.name.removeprefix(name + '.')} {layer.inputs}x{layer.outputs}" for layer in layers)
    return Refused(f"profile.scores: {name} runs {shapes}, which cannot be divided by heads; {SUPPORTED}")


@dataclass(frozen=True, slots=True)
class AttentionHead:
    """One attention head with its part of the feed-forward layer."""

    block: TransformerBlock
    number: int
    slices: tuple[ParameterSlice, ...]
    """Its weights; no two slices overlap."""

    @property
    def name(self) -> str:
        """`BLOCK#HEAD`."""
        return f"{self.block.name}#{self.number}"

    @property
    def fractions(self) -> Iterator[tuple[HalfBlock, Fraction]]:
        """Yield each half of the block with the head's fraction of it."""
        for half in (self.block.attention, self.block.feed_forward):
            first, end = split_evenly(half.outer.inputs, self.block.heads)[self.number]
            yield half, Fraction(end - first, half.outer.inputs)

    @property
    def layers(self) -> Iterator[tuple[DenseLayer, Fraction]]:
        """Yield every dense layer of the block with the head's fraction of it."""
        for half, fraction in self.fractions:
            yield from ((layer, fraction) for layer in half.layers)


def attention_heads(blocks: tuple[TransformerBlock, ...]) -> tuple[AttentionHead, ...]:
    """Return every head of every block, block by block."""
    return tuple(
        AttentionHead(block, number, _slices(block, number)) for block in blocks for number in range(block.heads)
    )


def split_evenly(width: int, heads: int) -> tuple[tuple[int, int], ...]:
    """Return [first, end) of every head, as even as integers allow, the first ones larger by one."""
    each, rest = divmod(width, heads)
    starts = [number * each + min(number, rest) for number in range(heads + 1)]
    return tuple(zip(starts, starts[1:], strict=False))


def _slices(block: TransformerBlock, number: int) -> tuple[ParameterSlice, ...]:
    found: list[ParameterSlice] = []
    for half in (block.attention, block.feed_forward):
        for part in half.inner:
            first, end = split_evenly(part.width, block.heads)[number]
            found += part.layer.rows(part.first + first, part.first + end)
        found += half.outer.columns(*split_evenly(half.outer.inputs, block.heads)[number])
    return tuple(found)
