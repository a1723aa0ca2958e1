"""Why nothing fits: the sentence of an infeasible problem."""

import numpy as np

from fleetune.solving.hpp.case import Case
from fleetune.solving.hpp.draft import Draft, Lack, judge
from fleetune.solving.proofs import counted


def why(case: Case, nearest: Draft) -> str:
    """Which device lacks how many bytes for which cheapest stage, or which constraint binds.

    A layer that no device can hold; then all weights with their state against all memories; then, in the plan that
    lacks least among those tried, the device that lacks most.
    """
    names = [layer.name for layer in case.problem.layers]
    state = np.array([case.state_bytes(i, i + 1) for i in range(case.layers)])
    alone = state + np.diff(case.activation_bytes)
    largest, roomiest = int(np.argmax(alone)), int(np.argmax(case.memory_bytes))
    room = int(case.memory_bytes[roomiest])
    if alone[largest] > room:
        return (
            f"device {case.problem.devices[roomiest].name}, the roomiest, lacks {int(alone[largest]) - room} bytes for "
            f"layer {names[largest]} alone with one sample ({int(alone[largest])} of {room}); split the layer, train "
            "fewer of its parameters or add a device with more memory"
        )
    total, have = case.state_bytes(0, case.layers), int(np.sum(case.memory_bytes))
    if total > have:
        return (
            f"all layers with gradients, optimizer state and snapshots need {total} bytes, all devices together have "
            f"{have}; train fewer parameters or add memory"
        )
    lack = judge(case, nearest).lack
    assert lack is not None, "only asked where nothing fits"
    return f"{lacking(case, nearest, lack)}; no plan was found that fits all memories: take smaller micro-batches"


def lacking(case: Case, draft: Draft, lack: Lack) -> str:
    """Who lacks how many bytes for what."""
    stage = draft.stages[lack.stage]
    samples = stage.samples[stage.devices.index(lack.device)]
    device = case.problem.devices[lack.device]
    kept = min(draft.warmups[lack.stage], case.micro_batches)
    first, last = case.problem.layers[stage.first].name, case.problem.layers[stage.end - 1].name
    span = f"layer {first}" if stage.end == stage.first + 1 else f"layers {first} to {last}"
    each = "the one micro-batch" if kept == 1 else f"each of {kept} micro-batches"
    return (
        f"device {device.name} lacks {lack.missing_bytes} bytes for {span} with {counted(samples, 'sample')} of {each} "
        f"kept ({device.memory_bytes + lack.missing_bytes} of {device.memory_bytes})"
    )
