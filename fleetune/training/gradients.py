"""Gradients of a round: the flat bucket that holds them, their sum over devices, their norms, and in fp16 their scale.

Clipping does what torch's clip_grad_norm_ does on the whole model, to the last bit: it takes the norm of the norms of
single tensors, in the order of the model's parameters and in the gradients' own precision, wherever the tensors are.

In fp16 the loss is multiplied by a scale before the backward, as its smallest numbers would be too large for many
gradients, and gradients are divided by it before the step. It is a power of two, so that neither rounds. A lane whose
gradients overflow takes no step, and the next round's scale is half of it; after GROWS_AFTER_ROUNDS rounds without that
it is doubled, as torch's GradScaler does. It follows from the commit log alone: a training that goes on from a
checkpoint, or after a loss, has the scale of one that nothing befell.
"""

import base64
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

import numpy as np
import torch
from torch import nn

from fleetune.contracts.link_frames import ring_slices
from fleetune.contracts.metrics import RoundMetrics
from fleetune.contracts.mixed_precision import FIRST_LOSS_SCALE, FP16
from fleetune.contracts.plan import Lane
from fleetune.contracts.run_config import ModelRequest
from fleetune.contracts.training_request import TrainingRequest
from fleetune.errors import Refused
from fleetune.training.exchange import DTYPES, Exchange, TransferKey, check_alike


class GradientBucket:
    """One flat tensor that holds every gradient as a view, so that an all-reduce copies nothing.

    Behind the gradients lies one mark per parameter: the number of members whose loss has reached it. Messages may
    still be sent from this memory until the round is committed, so only the ring writes to it.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._parameters = [p for p in parameters.values() if p.requires_grad]
        like = self._parameters[0] if self._parameters else torch.zeros(1)
        sizes = [*(p.numel() for p in self._parameters), len(self._parameters)]
        self.flat = torch.zeros(max(1, sum(sizes)), dtype=like.dtype, device=like.device)
        *pieces, self._marks = self.flat.narrow(0, 0, sum(sizes)).split(sizes)
        self._views = [piece.view_as(t) for piece, t in zip(pieces, self._parameters, strict=True)]
        self._reached: set[int] = set()
        for number, parameter in enumerate(self._parameters):
            parameter.register_post_accumulate_grad_hook(lambda _, number=number: self._reached.add(number))

    def start(self) -> None:
        """Zero the bucket and let a round's gradients accumulate in it."""
        self.flat.zero_()
        self._reached.clear()
        for parameter, view in zip(self._parameters, self._views, strict=True):
            parameter.grad = view

    def mark_reached(self) -> None:
        """Mark the parameters that this member's loss has reached."""
        for number in self._reached:
            self._marks[number] = 1

    def drop_unreached(self) -> None:
        """Remove the gradient of parameters that no member's loss has reached."""
        for parameter, mark in zip(self._parameters, self._marks.tolist(), strict=True):
            if not mark:
                parameter.grad = None


def ring_all_reduce(exchange: Exchange, group: Sequence[str], key: TransferKey, flat: torch.Tensor) -> float:
    """Sum `flat` over the group in place by a ring all-reduce; every member ends with the same bits.

    key: this member's first message. The ring takes 2(|G|-1) steps of |flat|/|G| elements each, in slices: each is
    added and sent on while the next one is on the way. Returns the time at which the previous member sent its first
    message (seconds of the coordinator's clock), so that waiting for a slow member is not counted as the ring's own
    time.
    """
    size, position = len(group), group.index(key.sender)
    following, previous = group[(position + 1) % size], group[position - 1]
    slices = ring_slices(math.ceil(flat.numel() / size) * flat.itemsize)
    parts = [part.tensor_split(slices) for part in flat.tensor_split(size)]
    steps = 2 * (size - 1)
    began_s = 0.0

    def at(step: int, number: int) -> TransferKey:
        return replace(key, step=step * slices + number)

    # No copies: a slice is overwritten only by its total, which depends on the arrival of what was sent of it.
    for number in range(slices if steps else 0):
        exchange.send(following, at(0, number), {0: parts[position][number]})
    for step in range(steps):
        into = parts[(position - step - 1) % size]
        for number in range(slices):
            arrival = exchange.receive(replace(at(step, number), sender=previous))
            check_alike(previous, "a slice of a sum of gradients,", arrival.tensors, {0: into[number]})
            began_s = began_s or arrival.sent_s
            if step >= size - 1:
                into[number].copy_(arrival.tensors[0])
            else:
                into[number].add_(arrival.tensors[0])
            del arrival  # frees its memory before the next message is received
            if step + 1 < steps:
                exchange.send(following, at(step + 1, number), {0: into[number]})
    return began_s


def shared_gradients(
    holders: Mapping[str, tuple[int, ...]], ends: tuple[int, int], grads: Mapping[str, torch.Tensor]
) -> dict[str | int, torch.Tensor]:
    """Return the gradients of the weights that both segments `ends` hold; those that no loss reaches are missing.

    holders: parameter -> ascending numbers of the segments that hold it.
    """
    return {
        name: grads[name] for name, segments in sorted(holders.items()) if set(ends) <= {*segments} and name in grads
    }


def add_terms(
    holders: Mapping[str, tuple[int, ...]],
    own: int,
    grads: Mapping[str, torch.Tensor],
    terms: Mapping[int, Mapping[str | int, torch.Tensor]],
) -> dict[str, torch.Tensor]:
    """Return the gradients of shared weights, with what other segments have for them added.

    grads: gradients of segment `own`, already summed over its group; a parameter that no loss reaches here is missing,
    and stays missing if no holder's loss reaches it. terms: other segment -> its gradients.
    Every holder adds in the order of segments, so that all end with the same bits. The terms' memory is left as it is,
    since the ring may still be sending from it.
    """
    sums: dict[str, torch.Tensor] = {}
    for name, segments in sorted(holders.items()):
        if own not in segments:
            continue
        found = [(grads if segment == own else terms[segment]).get(name) for segment in segments]
        for term in found:
            if term is not None:
                sums[name] = sums.get(name, torch.zeros_like(term)).add_(term)
    return sums


def tied_holders(units: dict[str, tuple[str, ...]], lane: Lane) -> dict[str, tuple[int, ...]]:
    """Return parameter -> indices of the segments that train it, for parameters that several segments do.

    units: unit -> its parameters that other units hold too.
    """
    found: dict[str, list[int]] = {}
    for index, segment in enumerate(lane.segments):
        for name in {name for unit in segment.trained for name in units.get(unit, ())}:
            found.setdefault(name, []).append(index)
    return {name: tuple(segments) for name, segments in found.items() if len(segments) > 1}


class NotFinite(Refused):
    """A gradient is not finite."""


def gradient_norms(gradients: Mapping[str, torch.Tensor], round: int) -> dict[str, torch.Tensor]:
    """Return the L2 norm of each gradient by name; NotFinite, naming the first gradient that is not."""
    if not gradients:
        return {}
    norms = dict(zip(gradients, torch._foreach_norm(list(gradients.values())), strict=True))
    if not bool(torch.stack(list(norms.values())).isfinite().all()):
        for name, gradient in gradients.items():  # a norm may overflow where every element is finite
            if not bool(gradient.isfinite().all()):
                raise NotFinite(
                    f"training: the gradient of {name} in round {round} is not finite; choose a smaller learning_rate, "
                    "or clip_norm"
                )
    return norms


def pack_norms(norms: Mapping[str, torch.Tensor], order: Mapping[str, int]) -> dict[str, Any]:
    """Return norms as JSON for a message's header, 16 bytes each. order: parameter -> its index in the model."""
    dtype = torch.stack(list(norms.values())).dtype if norms else torch.float32
    indices = np.array([order[name] for name in norms], dtype="<i4")
    values = np.array(torch.stack(list(norms.values())).tolist() if norms else [], dtype="<f8")
    return {"dtype": str(dtype).removeprefix("torch."), "places": _base64(indices), "values": _base64(values)}


def total_norm(reports: Iterable[Mapping[str, Any]]) -> torch.Tensor:
    """Return the global L2 norm of the norms that all devices have packed; 0 if there is no gradient."""
    norms: dict[int, float] = {}
    dtypes: list[torch.dtype] = []
    for report in reports:
        indices = np.frombuffer(base64.b64decode(report["places"]), dtype="<i4").tolist()
        values = np.frombuffer(base64.b64decode(report["values"]), dtype="<f8").tolist()
        norms.update(zip(indices, values, strict=True))
        dtypes += [DTYPES[report["dtype"]]] if indices else []
    if not norms:
        return torch.tensor(0.0)
    dtype = functools.reduce(torch.promote_types, dtypes)
    return torch.linalg.vector_norm(torch.tensor([norms[index] for index in sorted(norms)], dtype=dtype))


def clip_scale(training: TrainingRequest, total: torch.Tensor) -> float:
    """Return the factor that brings the global norm of the gradients to at most clip_norm."""
    if training.clip_norm is None:
        return 1.0
    return float(torch.clamp(training.clip_norm / (total + 1e-6), max=1.0))


def _base64(numbers: np.ndarray) -> str:
    return base64.b64encode(numbers.tobytes()).decode()


UNSCALED = 1.0
FIRST_SCALE, MOST_SCALE = FIRST_LOSS_SCALE, 2.0**24
GROWS_AFTER_ROUNDS = 2000


def next_scale(model: ModelRequest, rounds: Sequence[RoundMetrics]) -> float:
    """Return the scale of the round that follows the committed ones; UNSCALED for all but fp16."""
    if model.mixed_precision != FP16:
        return UNSCALED
    if not rounds:
        return FIRST_SCALE
    last = rounds[-1]
    scale = last.loss_scale or FIRST_SCALE
    if last.overflowed:
        return max(UNSCALED, scale / 2)
    newest = reversed(rounds[-GROWS_AFTER_ROUNDS:])
    calm = sum(1 for _ in takewhile(lambda each: each.loss_scale == last.loss_scale and not each.overflowed, newest))
    return min(MOST_SCALE, scale * 2) if calm >= GROWS_AFTER_ROUNDS else scale


def step_scales(
    training: TrainingRequest, metrics: RoundMetrics, norms: Mapping[str, torch.Tensor]
) -> dict[str, float | None]:
    """Return lane -> what its gradients are multiplied by before the step; None for a lane that takes none.

    norms: of the lanes' gradients, without the scale.
    """
    scale = metrics.loss_scale or UNSCALED
    return {
        lane: None if lane in metrics.overflowed else clip_scale(training, norm) / scale for lane, norm in norms.items()
    }
