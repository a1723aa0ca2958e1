"""Training on data that stay on their device: no sample or label leaves it as it is.

Masks of padding and positions cross cuts as they are: they tell how long texts are. Everything else that crosses has
passed a layer with parameters; from values that no learned layer has changed, whoever receives them reads a model's
inputs. Labels stay where the lane begins, because the lane ends there too.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from fleetune.checks import check_local_data
from fleetune.contracts.plan import Lane, Plan
from fleetune.data.prepared_data import MASK, POSITIONS
from fleetune.errors import Refused
from fleetune.models import graph as g
from fleetune.models.graph import Graph, parse_graph
from fleetune.models.skeleton import saved_configuration, skeleton
from fleetune.models.units import crossing_values
from fleetune.training.task import DeviceData, TrainingTask

if TYPE_CHECKING:
    from fleetune.preparation.local_data import DeviceWork

MOST_PASSES_RATIO = 2.0
"""Of two lanes' passes through their data between averages, above which it is pointed out."""


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


ALLOWED = frozenset({MASK, POSITIONS})
"""Inputs that may cross a cut as they are."""


def check_nothing_raw_leaves(task: TrainingTask) -> None:
    """Refuse a plan by which samples or labels would leave their device, as far as the recorded model tells."""
    check_local_data(task.plan.plan, task.profile, task.local)
    graph = parse_graph((task.model_folder / "graph.json").read_bytes(), "graph.json")
    raw = raw_inputs(graph, skeleton(saved_configuration(task.model_folder / "model"), task.model))
    for lane in task.plan.plan.lanes:
        for segment, names in _crossing(graph, lane, raw):
            if names - ALLOWED:
                raise Refused(f"data.local: {_what_leaves(graph, f'{lane.name}/{segment}', names - ALLOWED, raw)}")


def _what_leaves(graph: Graph, place: str, names: frozenset[str], raw: Mapping[int, frozenset[str]]) -> str:
    """Describe that these inputs cross the cut behind a segment, and what helps."""
    lost = f"{', '.join(sorted(names))} would leave the device that the data lie on"
    last_cut = crossing_values(graph, graph.units[-2].nodes[-1])
    if names <= frozenset[str]().union(*(raw[value] for value in last_cut)):
        return (
            f"the model's last unit reads {', '.join(sorted(names))} itself, as it looks for the end of each text, so "
            f"that it crosses every cut, and {lost}; train such a model with lola-deft"
        )
    return f"the cut behind segment {place} lies before the first learned layer, so {lost}; cut behind a later unit"


def prepare_own_data(
    work: "DeviceWork", plan: Plan, common: Path, seed: int, note: Callable[[str], None]
) -> dict[str, DeviceData]:
    """Have the devices on which lanes begin prepare data of their own.

    common: see `prepare_on_devices`. `note` receives sentences about sources that no lane uses and about samples
    that are cut.
    """
    from fleetune.preparation.local_data import prepare_on_devices  # with all readers of data, which others do not need

    owners = {lane.segments[0].devices[0] for lane in plan.lanes}
    unused = ", ".join(sorted(set(work.sources) - owners))
    if unused:
        note(f"data.local: by this plan no lane begins on {unused}, so what lies there is not used")
    used = replace(work, sources={device: source for device, source in work.sources.items() if device in owners})
    found = prepare_on_devices(used, common, seed, note)
    if said := uneven_passes(plan, {device: samples for device, (_, samples) in found.items()}):
        note(said)
    return {device: DeviceData(folder=folder, samples=samples) for device, (folder, samples) in found.items()}


def uneven_passes(plan: Plan, samples: Mapping[str, int]) -> str:
    """Return that lanes go through their data more often than others between two averages, and what would change it;
    empty where the most is at most MOST_PASSES_RATIO times the least.

    samples: device -> number of its training samples.
    """
    every = plan.average_every_rounds
    own = {lane: samples[lane.segments[0].devices[0]] / plan.micro_batches_of(lane) for lane in plan.lanes}
    if not every or not all(own.values()):
        return ""
    most = max(own.values())
    wanted = {lane.name: max(1, round(every * each / most)) for lane, each in own.items()}
    fewer = {name: rounds for name, rounds in wanted.items() if rounds < every}
    passes = {lane: (lane.rounds or every) * plan.micro_batch_samples / each for lane, each in own.items()}
    often, seldom = max(passes, key=passes.__getitem__), min(passes, key=passes.__getitem__)
    alike = passes[often] <= MOST_PASSES_RATIO * passes[seldom] or fewer == {n.name: n.rounds for n in own if n.rounds}
    if alike:
        return ""
    given = ", ".join(f"{name}: {rounds}" for name, rounds in fewer.items())
    return (
        f"data.local: between two averages {often.name} goes {passes[often]:.3g} times through its data and "
        f"{seldom.name} {passes[seldom]:.3g} times; with strategy.options.local_rounds {{{given}}} all would go "
        "through theirs about as often, as in FedAvg"
    )


def _crossing(graph: Graph, lane: Lane, raw: dict[int, frozenset[str]]) -> list[tuple[int, frozenset[str]]]:
    """Return (segment, the inputs that can be read off what it sends on), for all segments but the last."""
    last_nodes = {unit.name: unit.nodes[-1] for unit in graph.units}
    cuts = [crossing_values(graph, last_nodes[segment.units[-1]]) for segment in lane.segments[:-1]]
    return [(index, frozenset[str]().union(*(raw[value] for value in cut))) for index, cut in enumerate(cuts)]
