"""Keeps a measuring process within its device's memory, and measures a worker's memory beyond its tensors."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from fleetune.contracts.fleet import Device
from fleetune.errors import Infeasible
from fleetune.formatting import gigabytes
from fleetune.links.authentication import new_key_pair
from fleetune.links.endpoint import Endpoint, Listen
from fleetune.models.compute_copies import copy_bytes
from fleetune.models.device_memory import held_bytes
from fleetune.models.graph import Graph
from fleetune.models.meta_run import META, META_SAMPLES, empty_input
from fleetune.models.segment import SegmentRunner
from fleetune.models.units import state_by_unit
from fleetune.profiling.unit_bytes import detached_inputs, kept_bytes, run_tracking_saved

WORKER_MODULES_BYTES = 2_700_000
"""Assumed memory of the modules of this project that only a training worker imports; it imports the same libraries as
a measuring process. They are not imported here: an edit in training would otherwise change the key of the profile stage
and measure all devices again."""
ALLOCATOR_SLACK = 0.5
"""Memory beyond tensors that are made and let go in every micro-batch, as a share of these: glibc does not use
a freed block again for an aligned one of the same size (its bug 14581). Seen in workers of six plans: 0.27 to 0.6."""
MANY = 2 * META_SAMPLES
CARRIED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitMemory:
    """Memory that measuring one unit needs."""

    state_bytes: int
    """Weights and buffers, plus gradients of the same size, and copies of weights in half precision."""
    kept_bytes: int
    """Bytes kept from forward to backward, independent of the batch size."""
    sample_bytes: int
    """Bytes kept from forward to backward per sample, inputs and outputs included."""
    input_bytes: int
    """Input bytes per sample."""

    def activations(self, samples: int) -> int:
        """Kept from forward to backward."""
        return self.kept_bytes + samples * self.sample_bytes


def unit_memory(graph: Graph, skeleton: nn.Module) -> dict[str, UnitMemory]:
    """unit -> need, in order: counted on tensors without data. `skeleton` is the whole model on the meta device."""
    sizes = {n: t.numel() * t.element_size() for n, t in (*skeleton.named_parameters(), *skeleton.named_buffers())}
    copies = copy_bytes(skeleton, graph.compute)
    state = {
        unit: sum(2 * sizes[n] + copies.get(n, 0) for n in names)
        for unit, names in state_by_unit(graph, skeleton).items()
    }
    few, given_few = _activations(graph, skeleton, META_SAMPLES)
    many, given_many = _activations(graph, skeleton, MANY)
    made = {}
    for unit in state:
        per_sample = max(0, many[unit] - few[unit]) // (MANY - META_SAMPLES)
        fixed = max(0, few[unit] - META_SAMPLES * per_sample)
        made[unit] = UnitMemory(
            state_bytes=state[unit],
            kept_bytes=fixed,
            sample_bytes=per_sample,
            input_bytes=max(0, given_many[unit] - given_few[unit]) // (MANY - META_SAMPLES),
        )
    return made


def _activations(graph: Graph, skeleton: nn.Module, samples: int) -> tuple[dict[str, int], dict[str, int]]:
    """unit -> bytes kept from forward to backward by so many samples, and those of its inputs alone."""
    held = {number: empty_input(graph, number, samples) for number in graph.inputs.values()}
    found, given = {}, {}
    for unit in graph.units:
        segment = SegmentRunner(graph, (unit.name,), skeleton, META)
        segment.train()
        inputs = detached_inputs(graph, segment, held)
        held, kept = run_tracking_saved(segment, inputs, samples)
        found[unit.name], given[unit.name] = kept_bytes(inputs, held, kept), kept_bytes(inputs, {}, [])
    return found, given


def fitting_sizes(needs: Mapping[str, UnitMemory], sizes: tuple[int, ...], budget_bytes: int) -> tuple[int, ...]:
    """Batch sizes at which every unit alone fits the budget. Raises Infeasible if there is none."""
    fitting = tuple(size for size in sizes if all(_window_bytes([n], size) <= budget_bytes for n in needs.values()))
    if not fitting:
        unit, need = max(needs.items(), key=lambda item: _window_bytes([item[1]], sizes[0]))
        raise Infeasible(
            f"unit {unit} alone takes {gigabytes(_window_bytes([need], sizes[0]))} at {sizes[0]} samples, and a "
            f"worker leaves {gigabytes(max(0, budget_bytes))} of its memory for units; give it more memory or leave "
            "it out"
        )
    return fitting


def windows(needs: Mapping[str, UnitMemory], most_samples: int, budget_bytes: int) -> list[list[str]]:
    """Windows of consecutive units measured together within the budget; a unit that does not fit is its own window."""
    found: list[list[str]] = [[]]
    for unit in needs:
        together = [needs[name] for name in (*found[-1], unit)]
        if found[-1] and _window_bytes(together, most_samples) > budget_bytes:
            found.append([])
        found[-1].append(unit)
    return found


def _window_bytes(needs: list[UnitMemory], samples: int) -> int:
    """Bytes to measure these units together: their weights and gradients; all activations, the largest twice (for
    gradients and kernel buffers); and the values that enter and leave, for this and all smaller batch sizes."""
    kept = [need.activations(samples) for need in needs]
    carried = CARRIED * samples * max(need.input_bytes for need in needs)
    return sum(need.state_bytes for need in needs) + sum(kept) + max(kept) + carried


def idle_worker_bytes(device: torch.device) -> int:
    """Return what a training worker takes of its device's memory before its first unit: its imports, an endpoint and an
    optimizer that has stepped; of a GPU, the context and what the libraries work in."""
    with Endpoint("floor", new_key_pair(), {}, run="floor", listen=Listen(), note=lambda sentence: None):
        weight = nn.Parameter(torch.zeros(2, 2, device=device))
        optimizer = torch.optim.AdamW([weight], fused=True)
        (torch.zeros(2, 2, device=device) @ weight).sum().backward()
        optimizer.step()
        return held_bytes(device) + (0 if device.type == "cuda" else WORKER_MODULES_BYTES)


def with_slack(tensor_bytes: int, devices: Iterable[Device]) -> int:
    """Return the memory that tensors take which are made and let go in every micro-batch, on any of these devices.

    Torch's allocator of a GPU uses freed blocks again.
    """
    on_cpu = any(device.accelerator == "cpu" for device in devices)
    return round(tensor_bytes * (1 + ALLOCATOR_SLACK)) if on_cpu else tensor_bytes
