"""Times backwards of which only a part is needed beside whole ones: where a device trains some units of what it runs.

Above what it trains, a backward passes through units whose parameters get no gradient: half of the time, where they
would all be trained. Below the lowest trained unit nothing gets a gradient, so that this one computes none of its
inputs: 0.7 of the time with adapters. Passes of the three kinds take turns, so that a device that changes its speed
changes all of them.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import nn

from fleetune.contracts.profile import PartialBackward
from fleetune.models.graph import Graph
from fleetune.models.segment import SegmentRunner, Values
from fleetune.profiling.timing import TimedData, TimingSettings, Window, backwards, forwards

WHOLE, PASSED, LOWEST = "whole", "passed", "lowest"
KINDS = (WHOLE, PASSED, LOWEST)
TURNS = 4
"""After one that warms caches up."""
Turn = dict[str, list[float]]
"""Kind -> seconds of each unit's backward."""
Trained = list[tuple[nn.Parameter, bool]]
"""Parameters of a unit, and whether it trains them."""


def partial_backward(
    graph: Graph,
    windows: Sequence[list[str]],
    load: Callable[[list[str]], dict[str, SegmentRunner]],
    data: TimedData,
    settings: TimingSettings,
) -> PartialBackward:
    """Measure all units at the largest batch size, window by window, as `measure_units` does."""
    size, passed, lowest = settings.batch_sizes[-1], list[float](), list[float]()
    given = data.inputs(size)
    for names in windows:
        loaded = load(names)
        window = Window(
            graph=graph,
            segments=[loaded[name] for name in names],
            given=given,
            size=size,
            read=data.inputs if names is windows[0] else None,
            loss=data.loss if names is windows[-1] else None,
        )
        trained = [[(each, each.requires_grad) for each in s.parameters.values()] for s in window.segments]
        turns: list[Turn] = []
        for _ in range(TURNS + 1):
            taken: Turn = {}
            for kind in KINDS:
                given, taken[kind] = _backwards_s(window, kind, trained, settings)
            turns.append(taken)
        alike = _alike(window)
        passed += shares(turns[1:], PASSED, alike)
        lowest += shares(turns[1:], LOWEST, alike)
    return PartialBackward(passed=tuple(passed), lowest=tuple(lowest))


def shares(turns: Sequence[Turn], kind: str, alike: Sequence[object]) -> list[float]:
    """Return each unit's median share of its whole backward, that of all units which are alike; 1 where there is none.

    alike: equal for units that are alike, of which one alone would be too noisy.
    """
    found: dict[object, float] = {}
    for key in set(alike):
        of_kind = [place for place, other in enumerate(alike) if other == key]
        sums = [tuple(sum(turn[each][place] for place in of_kind) for each in (kind, WHOLE)) for turn in turns]
        found[key] = statistics.median(min(1.0, part / whole) if whole > 0 else 1.0 for part, whole in sums)
    return [found[key] for key in alike]


def _alike(window: Window) -> list[object]:
    """Return what is equal for units of the same parameters and operations, to whose inputs a backward goes or not."""
    return [
        (
            tuple((tuple(each.shape), each.requires_grad) for each in segment.parameters.values()),
            sum(len(unit.nodes) for unit in segment.units),
            any(window.graph.value(number).gradient for number in segment.input_values),
        )
        for segment in window.segments
    ]


def _backwards_s(
    window: Window, kind: str, trained: Sequence[Trained], settings: TimingSettings
) -> tuple[Values, list[float]]:
    """Run a window forward and backward; return its outputs, and the seconds of each unit's backward."""
    _train(window, trained, kind != PASSED)
    times: list[list[float]] = [[] for _ in window.segments]
    outputs, done = forwards(replace(window, differentiates=kind != LOWEST), settings, [[] for _ in times])
    backwards(window.segments, done, settings, times)
    _train(window, trained, True)
    return {number: value.detach() for number, value in outputs.items()}, [taken_s for (taken_s,) in times]


def _train(window: Window, trained: Sequence[Trained], trains: bool) -> None:
    """Let the parameters that are trained get gradients, or none of them."""
    for segment, parameters in zip(window.segments, trained, strict=True):
        for parameter, is_trained in parameters:
            parameter.requires_grad_(is_trained and trains)
        segment.drop_copies()  # in half precision they are what gets a gradient
