"""Which weights several units share."""

from torch import nn

from fleetune.models import graph as g
from fleetune.models.skeleton import canonical_names


def state_by_unit(graph: g.Graph, skeleton: nn.Module) -> dict[str, tuple[str, ...]]:
    """Unit -> canonical names of all parameters and buffers it reads."""
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


def tied_adapters(skeleton: nn.Module) -> tuple[str, ...]:
    """Layers with a LoRA adapter whose own weight another layer shares: it cannot be merged into that weight."""
    canonical = list(canonical_names(skeleton).values())
    names = [name for name, module in skeleton.named_modules() if hasattr(module, "lora_A")]
    shared = [name for name in names if canonical.count(canonical_names(skeleton)[f"{name}.base_layer.weight"]) > 1]
    return tuple(name.removeprefix("base_model.model.") for name in shared)


def tied_by_unit(graph: g.Graph, skeleton: nn.Module) -> dict[str, tuple[str, ...]]:
    """Unit -> its trained parameters that another unit reads too."""
    by_unit = state_by_unit(graph, skeleton)
    holders: dict[str, int] = {}
    for names in by_unit.values():
        for name in names:
            holders[name] = holders.get(name, 0) + 1
    trained = {name for name, p in skeleton.named_parameters() if p.requires_grad}
    return {unit: tuple(n for n in names if holders[n] > 1 and n in trained) for unit, names in by_unit.items()}
