"""Error messages of infeasible problems: the binding constraint in words."""

import numpy as np

from fleetune.solving.hpp.draft import Draft, MemoryShortfall, evaluate
from fleetune.solving.hpp.instance import Instance
from fleetune.solving.validation import plural


def explain_infeasible(instance: Instance, nearest: Draft) -> str:
    """Name the binding constraint of an instance for which no plan was found.

    Checked in this order: a layer that no device can hold; all weights with their state against the sum of all
    memories; in `nearest`, the draft with the smallest shortfall of those tried, the device with the largest one.
    """
    names = [layer.name for layer in instance.problem.layers]
    state = np.array([instance.state_bytes(i, i + 1) for i in range(instance.layers)])
    alone = state + np.diff(instance.activation_bytes)
    largest, roomiest = int(np.argmax(alone)), int(np.argmax(instance.memory_bytes))
    room = int(instance.memory_bytes[roomiest])
    if alone[largest] > room:
        return (
            f"device {instance.problem.devices[roomiest].name}, the roomiest, lacks {int(alone[largest]) - room} "
            f"bytes for layer {names[largest]} alone with one sample ({int(alone[largest])} of {room}); split the "
            "layer, train fewer of its parameters or add a device with more memory"
        )
    total, have = instance.state_bytes(0, instance.layers), int(np.sum(instance.memory_bytes))
    if total > have:
        return (
            f"all layers with gradients, optimizer state and snapshots need {total} bytes, all devices together have "
            f"{have}; train fewer parameters or add memory"
        )
    shortfall = evaluate(instance, nearest).shortfall
    assert shortfall is not None, "only called where nothing fits"
    described = describe_shortfall(instance, nearest, shortfall)
    return f"{described}; no plan was found that fits all memories: take smaller micro-batches"


def describe_shortfall(instance: Instance, draft: Draft, shortfall: MemoryShortfall) -> str:
    """Name the device, the missing bytes and the layers, samples and micro-batches that need them."""
    stage = draft.stages[shortfall.stage]
    samples = stage.samples[stage.devices.index(shortfall.device)]
    device = instance.problem.devices[shortfall.device]
    kept = min(draft.warmups[shortfall.stage], instance.micro_batches)
    first, last = instance.problem.layers[stage.first].name, instance.problem.layers[stage.end - 1].name
    span = f"layer {first}" if stage.end == stage.first + 1 else f"layers {first} to {last}"
    each = "the one micro-batch" if kept == 1 else f"each of {kept} micro-batches"
    return (
        f"device {device.name} lacks {shortfall.missing_bytes} bytes for {span} with {plural(samples, 'sample')} of "
        f"{each} kept ({device.memory_bytes + shortfall.missing_bytes} of {device.memory_bytes})"
    )
