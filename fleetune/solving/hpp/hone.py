"""Cuts moved as far as a sketch's bound can tell, which costs a fraction of a simulation; compiled."""

from fleetune.compiled import inner
from fleetune.solving.hpp.case import Numbers
from fleetune.solving.hpp.moves import deal
from fleetune.solving.hpp.sketch import Bench, Sketch, copy, promise

_PASSES = 8


@inner
def hone(numbers: Numbers, sketch: Sketch, bench: Bench, spare: Sketch) -> None:
    """Shift each cut to where the bound is lowest nearby, by steps that halve when none helps."""
    stages, layers = sketch.size[0], numbers.seconds.shape[2] - 1
    best, step = promise(numbers, sketch, bench), max(1, layers // (8 * stages))
    for _ in range(_PASSES):
        before = best
        for p in range(1, stages):
            for way in range(-1, 2, 2):
                edge = sketch.edge[p] + way * step
                if edge <= sketch.edge[p - 1] or edge >= sketch.edge[p + 1]:
                    continue
                copy(sketch, spare)
                sketch.edge[p] = edge
                deal(numbers, sketch, p - 1)
                deal(numbers, sketch, p)
                found = promise(numbers, sketch, bench)
                if found < best:
                    best = found
                else:
                    copy(spare, sketch)
        if best == before:
            if step == 1:
                return
            step = step // 2
