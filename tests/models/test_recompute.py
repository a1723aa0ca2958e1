"""Segments that compute the activations of their blocks again in the backward."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from fleetune.models.randomness import RandomContext
from fleetune.models.segment import SegmentRunner, Values
from tests.support.models.instances import RECORDED, Recorded, batch, recorded
from tests.support.training.model_families import BY_NAME, FAMILIES

DRAWS = RandomContext(seed=3, round=1, micro_batch=2, first=0, samples=RECORDED)


@dataclass
class Passed:
    """What a forward and a backward leave."""

    output: torch.Tensor
    gradients: dict[str, torch.Tensor | None]
    inputs: list[torch.Tensor | None] = field(default_factory=list)
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)


def passed(
    name: str, ready: Recorded, recompute: bool, draws: RandomContext = DRAWS, samples: int = RECORDED
) -> Passed:
    """Run all units but the first, cut there so that gradients leave the segment."""
    first, rest = ready.segment(ready.units[:1]), ready.segment(ready.units[1:])
    if recompute:
        rest.recompute()
    for segment in (first, rest):
        segment.train()
    given = batch(BY_NAME[name], samples)
    values = first.run({n: given[name] for name, n in ready.graph.inputs.items()}, samples, draws)
    entering = {n: v.detach().requires_grad_(ready.graph.value(n).gradient) for n, v in values.items()}
    output = rest.run(entering, samples, draws)[ready.graph.output]
    output.pow(2).sum().backward()
    return Passed(
        output=output.detach(),
        gradients={name: p.grad for name, p in rest.parameters.items()},
        inputs=[v.grad for v in entering.values()],
        buffers={name: b.clone() for name, b in rest.buffers.items()},
    )


def same(one: Any, other: Any) -> bool:
    """Whether two tensors, or two absent gradients, are equal bit by bit."""
    return one is other is None or torch.equal(one, other)


@pytest.mark.parametrize("granularity", ["block", "layer"])
@pytest.mark.parametrize("name", [family.name for family in FAMILIES])
def test_every_bit_is_that_of_kept_activations(name: str, granularity: str, tmp_path: Path) -> None:
    """Outputs, gradients, what leaves the segment, and running statistics, with dropout, in every family."""
    ready = recorded(BY_NAME[name], tmp_path, granularity)
    kept, again = (passed(name, ready, recompute) for recompute in (False, True))
    assert torch.equal(kept.output, again.output)
    assert kept.gradients.keys() == again.gradients.keys()
    assert all(same(kept.gradients[key], again.gradients[key]) for key in kept.gradients)
    assert all(same(a, b) for a, b in zip(kept.inputs, again.inputs, strict=True))
    assert all(torch.equal(kept.buffers[key], again.buffers[key]) for key in kept.buffers)


def test_a_part_of_a_micro_batch_draws_its_masks_again(tmp_path: Path) -> None:
    """A device that holds 2 of 4 samples slices the same masks in both forwards."""
    ready = recorded(BY_NAME["bert"], tmp_path)
    draws = RandomContext(seed=3, round=1, micro_batch=2, first=1, samples=RECORDED)
    kept, again = (passed("bert", ready, recompute, draws, samples=2) for recompute in (False, True))
    assert all(same(kept.gradients[key], again.gradients[key]) for key in kept.gradients)


def saved_bytes(segment: SegmentRunner, values: Values, draws: RandomContext) -> int:
    """Bytes of all storages that live until the backward, beside weights."""
    alive: dict[int, torch.UntypedStorage] = {}
    weights = {p.untyped_storage().data_ptr() for p in segment.parameters.values()}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            alive[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        segment.run(values, RECORDED, draws)
    return sum(storage.nbytes() for storage in alive.values())


def test_blocks_keep_their_inputs_alone(tmp_path: Path) -> None:
    """Autograd saves less than a fifth of what it saves of BERT's blocks otherwise."""
    ready = recorded(BY_NAME["bert"], tmp_path)
    blocks = [name for name in ready.units if "layer" in name]
    below = ready.units[: ready.units.index(blocks[0])]
    given = batch(BY_NAME["bert"], RECORDED)
    first = ready.segment(below)
    values = first.run({n: given[name] for name, n in ready.graph.inputs.items()}, RECORDED, DRAWS)
    values = {n: v.detach().requires_grad_(ready.graph.value(n).gradient) for n, v in values.items()}
    kept, again = ready.segment(blocks), ready.segment(blocks)
    again.recompute()
    assert saved_bytes(again, dict(values), DRAWS) < 0.2 * saved_bytes(kept, dict(values), DRAWS)


def test_frozen_units_below_the_first_trained_one_run_once(tmp_path: Path) -> None:
    """They keep no graph, recomputed or not; gradients are those of kept activations."""
    ready = recorded(BY_NAME["bert"], tmp_path)
    last = [name for name in ready.units if "layer" in name][-1]
    found = []
    for recompute in (False, True):
        segment = ready.segment(ready.units)
        segment.train_only([last], [n for n in segment.parameters if n.startswith(last)])
        if recompute:
            segment.recompute()
        segment.train()
        calls = 0

        def count(*_: object) -> None:
            nonlocal calls
            calls += 1

        for module in segment.modules.values():
            module.register_forward_pre_hook(count)
        given = batch(BY_NAME["bert"], RECORDED)
        out = segment.run({n: given[name] for name, n in ready.graph.inputs.items()}, RECORDED, DRAWS)
        out[ready.graph.output].pow(2).sum().backward()
        found.append(({n: p.grad for n, p in segment.parameters.items() if p.grad is not None}, calls))
    (kept, once), (again, twice) = found
    assert kept.keys() == again.keys() and all(torch.equal(kept[name], again[name]) for name in kept)
    assert once < twice < 2 * once, "only the trained block runs twice"
