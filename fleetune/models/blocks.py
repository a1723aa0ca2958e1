"""The attention and the feed-forward layer of every block of a transformer, found by what the model does.

A block is a member of an outermost list of modules. Its dense layers are told apart by the order in which a run calls
them, and by which of them read the very same tensor: queries, keys and values (or one layer that makes all three),
what puts heads together, one layer up (or two, where one gates the other), one layer down. Names are not asked:
they differ from family to family.
"""

from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import PretrainedConfig

from fleetune.errors import Refused
from fleetune.models.dense import Dense, dense_layers
from fleetune.models.dry import dry_run
from fleetune.models.graph import Graph

SUPPORTED = (
    "supported are blocks that run queries, keys and values (three dense layers, or one Conv1D that makes them one "
    "after the other), one dense layer that joins the heads, one or two up and one down, in this order, as in ViT, "
    "BERT, RoBERTa, MiniLM, GPT-2 and Llama"
)


@dataclass(frozen=True, slots=True)
class Band:
    """Outputs [first, first + width) of a dense layer."""

    layer: Dense
    first: int
    width: int


@dataclass(frozen=True, slots=True)
class Half:
    """Half a block: `outer` reads, side by side, what every member makes of the outputs of `inner` that are its own."""

    inner: tuple[Band, ...]
    outer: Dense

    @property
    def layers(self) -> tuple[Dense, ...]:
        """All of them."""
        return (*dict.fromkeys(band.layer for band in self.inner), self.outer)


@dataclass(frozen=True, slots=True)
class Block:
    """One block."""

    name: str
    heads: int
    """Of keys and values: where several heads of queries share one, they are one head here, as none could run alone."""
    attention: Half
    feed_forward: Half


def find_blocks(graph: Graph, skeleton: nn.Module, config: PretrainedConfig) -> tuple[Block, ...]:
    """Blocks in the order in which they run; Refused, naming the first block that does not fit, for other models.

    `skeleton` is the whole model on the meta device.
    """
    dense = dense_layers(skeleton)
    names = _members(skeleton)
    calls: dict[str, list[tuple[Dense, Any]]] = {}

    def seen(module: nn.Module, given: Any) -> None:
        layer = dense.get(module)
        block = layer and next((name for name in names if layer.name.startswith(f"{name}.")), None)
        if layer and block:
            calls.setdefault(block, []).append((layer, given[0]))  # held, so that no other tensor takes its place

    dry_run(graph, skeleton, seen)
    if not calls:
        raise Refused(f"profile.scores: {type(config).__name__} has no blocks with dense layers; {SUPPORTED}")
    return tuple(_block(name, _steps(called), config) for name, called in calls.items())


def _members(skeleton: nn.Module) -> list[str]:
    """Names of what outermost lists of modules hold."""
    found: list[str] = []
    for name, module in skeleton.named_modules():
        if isinstance(module, nn.ModuleList) and not any(name.startswith(f"{member}.") for member in found):
            found += [f"{name}.{child}" for child, _ in module.named_children()]
    return found


def _steps(called: list[tuple[Dense, Any]]) -> list[list[Dense]]:
    """Layers in the order of their calls; those that read the same tensor make one step."""
    steps: list[list[Dense]] = []
    before: Any = None
    for layer, given in called:
        if steps and given is before:
            steps[-1].append(layer)
        else:
            steps.append([layer])
        before = given
    return steps


def _block(name: str, steps: list[list[Dense]], config: PretrainedConfig) -> Block:
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
        raise _unfit(name, layers)
    (joins,), ups, (down,) = steps[1:]
    inner = _projections(steps[0], joins.inputs, heads / queries)
    fits = inner and joins.inputs % queries == 0 and queries % heads == 0 and joins.outputs == down.outputs
    if not fits or any(up.outputs != down.inputs for up in ups) or down.inputs < heads:
        raise _unfit(name, layers)
    feed_forward = Half(tuple(Band(up, 0, up.outputs) for up in ups), down)
    return Block(name, heads, Half(inner, joins), feed_forward)


def _projections(layers: list[Dense], width: int, keys: float) -> tuple[Band, ...]:
    """Queries, keys and values for `width` columns of what joins the heads, `keys` as many of keys as of queries;
    empty where they are not."""
    if len(layers) == 1:
        (fused,) = layers
        whole = fused.conv1d and fused.outputs == 3 * width and keys == 1
        return tuple(Band(fused, place * width, width) for place in range(3)) if whole else ()
    wanted = sorted([width, round(width * keys), round(width * keys)])
    return tuple(Band(one, 0, one.outputs) for one in layers) if sorted(one.outputs for one in layers) == wanted else ()


def _unfit(name: str, layers: list[Dense]) -> Refused:
    shapes = ", ".join(f"{layer.name.removeprefix(name + '.')} {layer.inputs}x{layer.outputs}" for layer in layers)
    return Refused(f"profile.scores: {name} runs {shapes}, which cannot be divided by heads; {SUPPORTED}")
