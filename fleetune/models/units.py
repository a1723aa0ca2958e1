"""Units of a model: the modules that run as one piece, the folding of a graph into units, and the state they share."""

import dataclasses
from collections import Counter

from torch import nn

from fleetune.contracts.run_config import Lora
from fleetune.errors import Refused
from fleetune.models import graph as g
from fleetune.models.experts import holds_experts
from fleetune.models.skeleton import canonical_names

# In these families the outermost repeated part is a whole stage of the network, which repeats the block.
BLOCK_CLASSES = {"resnet": ("ResNetBasicLayer", "ResNetBottleNeckLayer")}


def leaf_modules(model: nn.Module, granularity: str) -> set[str]:
    """Return the names of the modules that are recorded as one call.

    granularity `block`: transformer layers, residual blocks or inverted residuals (the repeated part of the model), and
    each module outside the repeated part (embeddings, pooler, head). `layer`: modules without children, and adapters
    with their base layer.
    """
    if granularity == "layer":
        return {name for name, module in model.named_modules() if name and _is_layer(module)}
    blocks = _repeated_modules(model)
    above = {name.rsplit(".", cut)[0] for name in blocks for cut in range(1, name.count(".") + 1)}
    found = set(blocks)
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{leaf}.") for leaf in found)
        if name and not inside and name not in above and not isinstance(module, nn.ModuleList | nn.ModuleDict):
            found.add(name)
    return found


def _is_layer(module: nn.Module) -> bool:
    """Return whether a module has no children, is an adapter around one layer, or the experts of one layer."""
    return not any(True for _ in module.children()) or hasattr(module, "lora_A") or holds_experts(module)


def _repeated_modules(model: nn.Module) -> list[str]:
    config = getattr(model, "config", None)
    classes = BLOCK_CLASSES.get(getattr(config, "model_type", ""), ())
    if classes:
        return [name for name, module in model.named_modules() if type(module).__name__ in classes]
    found: list[str] = []
    for name, module in model.named_modules():
        repeated = isinstance(module, nn.ModuleList) and len(module) > 0
        if repeated and not any(name == leaf or name.startswith(f"{leaf}.") for leaf in found):
            found += [f"{name}.{child}" for child, _ in module.named_children()]
    return found


def fold_into_units(graph: g.Graph) -> g.Graph:
    """Return the graph with units: each leaf module with the operations before it, the last one also with those after.

    A unit is named after its last module. A module that runs twice makes two units, the second called NAME@2.
    Cuts never separate a call from the items of its result.
    """
    groups: list[list[g.Node]] = [[]]
    work = [node for node in graph.nodes if node.kind not in (g.INPUT, g.ATTRIBUTE)]
    for index, node in enumerate(work):
        groups[-1].append(node)
        following = work[index + 1] if index + 1 < len(work) else None
        has_module = any(n.kind == g.MODULE for n in groups[-1])
        more_modules = any(n.kind == g.MODULE for n in work[index + 1 :])
        if has_module and more_modules and (following is None or following.kind != g.ITEM):
            groups.append([])
    units: list[g.GraphUnit] = []
    used: dict[str, int] = {}
    for group in groups:
        name = next((n.target for n in reversed(group) if n.kind == g.MODULE), "model")
        used[name] = used.get(name, 0) + 1
        spelled = name if used[name] == 1 else f"{name}@{used[name]}"
        units.append(g.GraphUnit(name=spelled, nodes=tuple(node.id for node in group)))
    return dataclasses.replace(graph, units=tuple(units))


def merge_uncuttable(graph: g.Graph) -> g.Graph:
    """Merge units between which no cut is possible, so that a cut is possible between any two units."""
    merged: list[g.GraphUnit] = []
    for unit in graph.units:
        if merged and not is_cuttable(graph, merged[-1].nodes[-1]):
            before = merged.pop()
            unit = g.GraphUnit(name=unit.name, nodes=before.nodes + unit.nodes)
        merged.append(unit)
    return dataclasses.replace(graph, units=tuple(merged))


def crossing_values(graph: g.Graph, last: int) -> tuple[int, ...]:
    """Return the values that cross a cut right after node `last`: made (or inputs) before it, read after it."""
    made = {node.id for node in graph.nodes if node.id <= last and node.kind != g.ATTRIBUTE}
    made.update(graph.inputs.values())
    read = {r for node in graph.nodes if node.id > last and node.kind != g.INPUT for r in node.reads}
    return tuple(sorted(made & read))


def is_cuttable(graph: g.Graph, last: int) -> bool:
    """Return whether all values that cross the cut can be divided by samples or are the same for all samples."""
    return all(graph.batched(value) is not None for value in crossing_values(graph, last))


def state_by_unit(graph: g.Graph, skeleton: nn.Module) -> dict[str, tuple[str, ...]]:
    """Return unit -> canonical names of all parameters and buffers that it reads."""
    canonical = canonical_names(skeleton)
    found: dict[str, tuple[str, ...]] = {}
    for unit in graph.units:
        names: list[str] = []
        for number in unit.nodes:
            node = graph.node(number)
            if node.kind == g.MODULE:
                prefix = f"{node.target}."
                names += [c for name, c in canonical.items() if name.startswith(prefix)]
            names += [canonical[graph.node(r).target] for r in node.reads if graph.node(r).kind == g.ATTRIBUTE]
        found[unit.name] = tuple(dict.fromkeys(names))
    return found


def tied_adapter_layers(skeleton: nn.Module) -> tuple[str, ...]:
    """Return layers with a LoRA adapter whose base weight another layer shares: the adapter cannot be merged.

    Experts are adapted by parameter, with a layer of PEFT around another for each, and are named by parameter.
    """
    canonical = canonical_names(skeleton)
    readers = Counter(canonical.values())
    shared = list[str]()
    for name, module in skeleton.named_modules():
        if hasattr(module, "lora_A"):
            inner, own = f"{name}.base_layer.", getattr(module, "parameter_name", "weight")
            while f"{inner}{own}" not in canonical:
                inner += "base_layer."
            if readers[canonical[f"{inner}{own}"]] > 1:
                shared.append(name if own == "weight" else f"{inner.replace('base_layer.', '')}{own}")
    return tuple(name.removeprefix("base_model.model.") for name in shared)


def refuse_tied_adapters(skeleton: nn.Module, lora: Lora | None) -> None:
    """Refuse targets whose base weight another layer shares: merging would change what both compute."""
    shared = ", ".join(tied_adapter_layers(skeleton))
    if lora is not None and shared:
        raise Refused(
            f"model: lora.targets {lora.targets!r} fit {shared}, whose weight another layer shares, so that the "
            f"trained adapter could not be merged into the model; leave {shared} out of lora.targets"
        )


def tied_parameters_by_unit(graph: g.Graph, skeleton: nn.Module, *, trained: bool = True) -> dict[str, tuple[str, ...]]:
    """Return unit -> its trained parameters that another unit reads too; with `trained` False the frozen ones."""
    by_unit = state_by_unit(graph, skeleton)
    holders: dict[str, int] = {}
    for names in by_unit.values():
        for name in names:
            holders[name] = holders.get(name, 0) + 1
    kind = {name for name, p in skeleton.named_parameters() if p.requires_grad == trained}
    return {unit: tuple(n for n in names if holders[n] > 1 and n in kind) for unit, names in by_unit.items()}
