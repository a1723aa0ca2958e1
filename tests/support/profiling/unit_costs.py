"""Measured costs of the units of a tiny model."""

from collections.abc import Callable
from typing import Any

from fleetune.models.segment import SegmentRunner
from fleetune.profiling.timing import PassLog, TimedData, TimingSettings, UnitCost, measure_units
from tests.support.models.instances import Recorded, batch
from tests.support.profiling.instances import FAMILY

SIZES = (1, 2, 4)


def loader(ready: Recorded) -> Callable[[list[str]], dict[str, SegmentRunner]]:
    """A function that loads units with weights, in training mode."""

    def load(units: list[str]) -> dict[str, SegmentRunner]:
        made = {unit: ready.segment((unit,)) for unit in units}
        for segment in made.values():
            segment.train()
        return made

    return load


def costs(ready: Recorded, windows: list[list[str]], log: PassLog | None = None, **effort: Any) -> dict[str, UnitCost]:
    """All results of measure_units; passes are added to `log`."""

    def inputs(size: int) -> dict[int, Any]:
        rows = batch(FAMILY, size)
        return {number: rows[name] for name, number in ready.graph.inputs.items()}

    settings, data = TimingSettings(batch_sizes=SIZES, passes=2, **effort), TimedData(inputs=inputs)
    return dict(measure_units(ready.graph, windows, loader(ready), data, settings, log or PassLog()))
