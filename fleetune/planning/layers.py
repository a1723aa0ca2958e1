"""The layers that planners cut between: the model's units, or units joined into fewer layers."""

from collections.abc import Sequence

import numpy as np

from fleetune.clock import Clock
from fleetune.contracts.profile import Unit
from fleetune.errors import Refused
from fleetune.planning.strategy import Problem
from fleetune.program.blocks import block_of
from fleetune.solving.hpp.chain_cuts import edges_at
from fleetune.solving.hpp.problem import Layer

UNITS, BLOCKS = "units", "blocks"


def cut_places(units: Sequence[Unit]) -> list[int]:
    """Positions in the list of units where a segment may begin or end, both ends included."""
    return [0, *(k for k in range(1, len(units)) if units[k - 1].cut_after), len(units)]


def layer_edges(problem: Problem, layers: str | int, clock: Clock) -> list[int]:
    """Positions in the list of units where layers begin and end: some or all of `cut_places`.

    `units`: all of them. `blocks`: where the model's repeated blocks begin and end. A number n: about n layers of equal
    work (measured seconds, every device weighted equally), each cut where least crosses within a quarter of a layer's
    work of its ideal place, or else at the nearest place. Refused: anything else.
    """
    units = problem.profile.units
    if layers == UNITS:
        return cut_places(units)
    if layers == BLOCKS:
        blocks = block_of([unit.name for unit in units])
        return [k for k in cut_places(units) if k in (0, len(units)) or blocks[k] != blocks[k - 1]]
    if isinstance(layers, int) and layers >= 1:
        return _of_equal_work(problem, layers, clock)
    raise Refused(f"layers is {layers!r}; allowed are {UNITS}, {BLOCKS} and a number of layers of at least 1")


def join_units(units: Sequence[Unit]) -> Layer:
    """Join units to a layer; a cut after it carries what a cut after its last unit carries.

    param_bytes includes frozen weights and buffers, which a device keeps but neither trains nor reduces.
    """
    first, last = units[0], units[-1]
    return Layer(
        name=first.name if len(units) == 1 else f"{first.name} .. {last.name}",
        param_bytes=sum(unit.param_bytes + unit.buffer_bytes for unit in units),
        trainable_bytes=sum(unit.trainable_bytes for unit in units),
        activation_bytes=sum(unit.activation_bytes for unit in units),
        flops=sum(unit.flops for unit in units),
        output_bytes=last.output_bytes,
        gradient_bytes=last.gradient_bytes,
    )


def _of_equal_work(problem: Problem, count: int, clock: Clock) -> list[int]:
    units, places = problem.profile.units, cut_places(problem.profile.units)
    work = np.zeros(len(units))
    for device in problem.fleet.devices:
        seconds = np.sum(clock.unit_times(device.name, problem.micro_batch_samples), axis=0)
        work += seconds / (seconds.sum() or 1.0)
    done = np.concatenate([[0.0], np.cumsum(work)])
    if done[-1] == 0:
        return [0, len(units)]
    each, position = done[-1] / count, done[places]
    crossing = np.array([_crosses(units, k) for k in places], np.float64)
    return [places[k] for k in edges_at(position, crossing, np.arange(1, count) * each, each / 4, nearest=True)]


def _crosses(units: Sequence[Unit], place: int) -> int:
    return units[place - 1].output_bytes + units[place - 1].gradient_bytes if 0 < place < len(units) else 0
