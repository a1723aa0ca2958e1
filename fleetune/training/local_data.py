"""What may leave a device that trains on data of its own: nothing of which its samples or labels can be read off.

Masks of padding cross cuts as they are: they tell how long texts are. Everything else that crosses has passed a layer
with parameters. Labels stay where the lane begins, because the lane ends there too.
"""

from fleetune.checks import check_local_data
from fleetune.contracts.plan import Lane
from fleetune.data.prepared_data import MASK
from fleetune.errors import Refused
from fleetune.models.graph import Graph, parse_graph
from fleetune.models.raw_values import raw_inputs
from fleetune.models.skeleton import saved_configuration, skeleton
from fleetune.models.units import crossing_values
from fleetune.training.task import TrainingTask

ALLOWED = frozenset({MASK})
"""Inputs that may cross a cut as they are."""


def check_nothing_raw_leaves(task: TrainingTask) -> None:
    """Refuse a plan by which samples or labels would leave their device, as far as the recorded model tells."""
    check_local_data(task.plan.plan, task.profile, task.local)
    graph = parse_graph((task.model_folder / "graph.json").read_bytes(), "graph.json")
    raw = raw_inputs(graph, skeleton(saved_configuration(task.model_folder / "model"), task.model))
    for lane in task.plan.plan.lanes:
        for segment, names in _crossing(graph, lane, raw):
            if names - ALLOWED:
                lost = f"{', '.join(sorted(names - ALLOWED))} would leave {lane.segments[0].devices[0]}"
                raise Refused(
                    f"data.local: the cut behind segment {lane.name}/{segment} lies before the first learned layer, so "
                    f"{lost}; cut behind a later unit"
                )


def _crossing(graph: Graph, lane: Lane, raw: dict[int, frozenset[str]]) -> list[tuple[int, frozenset[str]]]:
    """Return (segment, the inputs that can be read off what it sends on), for all segments but the last."""
    last_nodes = {unit.name: unit.nodes[-1] for unit in graph.units}
    cuts = [crossing_values(graph, last_nodes[segment.units[-1]]) for segment in lane.segments[:-1]]
    return [(index, frozenset[str]().union(*(raw[value] for value in cut))) for index, cut in enumerate(cuts)]
