"""Values that no learned layer has changed: from them, whoever receives them reads a model's inputs."""

from torch import nn

from fleetune.models import graph as g


def raw_inputs(graph: g.Graph, skeleton: nn.Module) -> dict[int, frozenset[str]]:
    """Return node -> the inputs that reach it without any operation with parameters in between.

    skeleton: the whole model. A frozen layer counts as learned, since it has parameters.
    """
    parameters = {name for name, _ in skeleton.named_parameters(remove_duplicate=False)}
    owners = {name[:end] for name in parameters for end, letter in enumerate(name) if letter == "."}
    named = {number: name for name, number in graph.inputs.items()}
    found: dict[int, frozenset[str]] = {}
    for node in graph.nodes:
        if node.kind == g.INPUT:
            found[node.id] = frozenset({named.get(node.id, node.target)})
            continue
        reads = [graph.node(number) for number in node.reads]
        learned = node.kind == g.MODULE and node.target in owners
        learned = learned or any(read.kind == g.ATTRIBUTE and read.target in parameters for read in reads)
        found[node.id] = frozenset() if learned else frozenset[str]().union(*(found[read.id] for read in reads))
    return found
