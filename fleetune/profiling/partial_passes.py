"""Times passes of which only a part is needed beside whole ones: where a device trains some units of what it runs.

Above what it trains, a backward passes through units whose parameters get no gradient: half of the time, where they
would all be trained. Below the lowest trained unit nothing gets a gradient, so that this one computes none of its
inputs: 0.75 of the time with adapters. Forwards below it keep nothing: 0.8 of the time. Passes of all kinds take turns,
so that a device that changes its speed changes all of them.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import nn

from fleetune.contracts.profile import PartialPasses
from fleetune.launching.process_limits import CpuThrottle
from fleetune.linux import trim_heap
from fleetune.models.graph import Graph
from fleetune.models.segment import SegmentRunner, Values
from fleetune.profiling.timing import TimedData, TimingSettings, Window, backwards, forwards, rest

WHOLE, PASSED, LOWEST = "whole", "passed", "lowest"
KINDS = (WHOLE, PASSED, LOWEST)
TURNS = 4
"""After one that warms caches up."""
RECORDED, BELOW = "recorded", "below"
"""Forwards: those before whole backwards, and such that keep nothing for a backward."""
Turn = dict[str, list[float]]
"""Kind -> seconds of each unit's backward or forward."""
Trained = list[tuple[nn.Parameter, bool]]
"""Parameters of a unit, and whether it trains them."""


class Kin(NamedTuple):
    """What is equal for units that take as long as each other."""

    parameters: tuple[tuple[tuple[int, ...], bool], ...]
    """Shape of each parameter, and whether it is trained."""
    operations: int
    differentiated: bool
    """Whether its inputs get gradients."""

    @classmethod
    def of(cls, window: Window, segment: SegmentRunner) -> "Kin":
        """Return that of a unit."""
        return cls(
            tuple((tuple(each.shape), each.requires_grad) for each in segment.parameters.values()),
            sum(len(unit.nodes) for unit in segment.units),
            any(window.graph.value(number).gradient for number in segment.input_values),
        )

    def leaves_out(self, kind: str) -> bool:
        """Return whether a pass of this kind leaves out anything of the whole one."""
        is_trained = any(trains for _, trains in self.parameters)
        return {PASSED: is_trained, LOWEST: self.differentiated, BELOW: is_trained or self.differentiated}[kind]


def partial_passes(
    graph: Graph,
    windows: Sequence[list[str]],
    load: Callable[[list[str]], dict[str, SegmentRunner]],
    data: TimedData,
    settings: TimingSettings,
) -> PartialPasses:
    """Measure all units at the largest batch size, window by window, as `measure_units` does."""
    below, passed, lowest = list[float](), list[float](), list[float]()
    size = settings.batch_sizes[-1]
    given = data.inputs(size)
    for names in windows:
        trim_heap()
        empty = Window(
            graph=graph,
            segments=[],
            given=given,
            size=size,
            read=data.inputs if names is windows[0] else None,
            loss=data.loss if names is windows[-1] else None,
        )
        given, turns, units = _measure_window(empty, names, load, settings)
        below += shares(turns, BELOW, RECORDED, units)
        passed += shares(turns, PASSED, WHOLE, units)
        lowest += shares(turns, LOWEST, WHOLE, units)
    return PartialPasses(below=tuple(below), passed=tuple(passed), lowest=tuple(lowest))


def _measure_window(
    empty: Window, names: list[str], load: Callable[[list[str]], dict[str, SegmentRunner]], settings: TimingSettings
) -> tuple[Values, list[Turn], list[Kin]]:
    """Load a window's units and measure them; return its outputs, the turns and the kin of each unit.

    Nobody holds the units any more when it returns.
    """
    loaded = load(names)
    window = replace(empty, segments=[loaded[name] for name in names])
    trained = [[(each, each.requires_grad) for each in s.parameters.values()] for s in window.segments]
    turns: list[Turn] = []
    for _ in range(TURNS + 1):
        taken: Turn = {}
        for kind in KINDS:
            given, taken[kind], forward_s = _passes_s(window, kind, trained, settings)
            taken.setdefault(RECORDED, forward_s)
        taken[BELOW] = _unrecorded_s(window, settings)
        turns.append(taken)
    return given, turns[1:], [Kin.of(window, segment) for segment in window.segments]


def shares(turns: Sequence[Turn], kind: str, whole: str, units: Sequence[Kin]) -> list[float]:
    """Return each unit's share of its whole pass, the median over turns of all that are of its kin, since one alone
    would be too noisy; 1 for units of which nothing is left out, and for those without such a pass."""
    found: dict[Kin, float] = {}
    for kin in set(units):
        places = [place for place, other in enumerate(units) if other == kin]
        sums = [tuple(sum(turn[each][place] for place in places) for each in (kind, whole)) for turn in turns]
        parts = [part_s / whole_s for part_s, whole_s in sums if whole_s > 0]
        found[kin] = min(1.0, statistics.median(parts)) if parts and kin.leaves_out(kind) else 1.0
    return [found[kin] for kin in units]


def _passes_s(
    window: Window, kind: str, trained: Sequence[Trained], settings: TimingSettings
) -> tuple[Values, list[float], list[float]]:
    """Run a window forward and backward; return its outputs, and the seconds of each unit's backward and forward."""
    _train(window, trained, kind != PASSED)
    forward, backward = _no_times(window), _no_times(window)
    throttle = CpuThrottle(settings.cores, sleep=rest)
    with throttle.throttled():
        outputs, done = forwards(replace(window, differentiates=kind != LOWEST), settings, forward)
    with throttle.throttled():
        backwards(window.segments, done, settings, backward)
    _train(window, trained, True)
    return {number: value.detach() for number, value in outputs.items()}, _firsts(backward), _firsts(forward)


def _unrecorded_s(window: Window, settings: TimingSettings) -> list[float]:
    """Run a window forward, keeping nothing for a backward; return the seconds of each unit."""
    forward = _no_times(window)
    with torch.no_grad(), CpuThrottle(settings.cores, sleep=rest).throttled():
        forwards(replace(window, differentiates=False), settings, forward)
    return _firsts(forward)


def _no_times(window: Window) -> list[list[float]]:
    return [[] for _ in window.segments]


def _firsts(times: list[list[float]]) -> list[float]:
    return [taken_s for (taken_s,) in times]


def _train(window: Window, trained: Sequence[Trained], trains: bool) -> None:
    """Let the parameters that are trained get gradients, or none of them."""
    for segment, parameters in zip(window.segments, trained, strict=True):
        for parameter, is_trained in parameters:
            parameter.requires_grad_(is_trained and trains)
        segment.renew_copies()  # in half precision they are what gets a gradient; made once for all micro-batches
