"""Codecs of the values and gradients that a worker sends and receives across cuts.

Only values that carry a gradient and whose first dimension is samples are coded; masks, positions and what all samples
share travel as they are. The gradient with respect to what arrived is that with respect to what was sent.

In fp16 the loss is scaled until gradients overflow now and then. Those cross as they are, so that every device before
the cut sees the overflow and the lane takes no step. What messages of gradients lose is kept without the scale, which
may have changed when it is added to the next ones; and in float32, since in half precision small losses would add up to
nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from fleetune.codecs import ErrorFeedback, decode, encode, kept_indices
from fleetune.codecs.codec import Encoded
from fleetune.contracts.link_codecs import DENSE, ELEMENT_BYTES, FORWARD_MASK
from fleetune.contracts.plan import BACKWARD, FORWARD, Action, LinkUse, Plan, parse_action
from fleetune.errors import Refused
from fleetune.models.device_memory import DEVICE_ERRORS
from fleetune.training.exchange import Arrival
from fleetune.training.gradients import UNSCALED

Shape = Callable[[int], tuple[int, ...] | None]
"""Number of a value -> shape of one of its samples; None for a value that is not coded."""


class CodedValues(NamedTuple):
    """Content of a message: tensors by value number, or by `NUMBER|PART` where a codec made several parts."""

    tensors: Mapping[Any, torch.Tensor]
    described: dict[str, Any]
    """Value number -> its codec's description."""


class LinkCoder:
    """Codes what one device exchanges; remembers what top-k kept in a forward until its gradient has crossed.

    `feedback` holds the residuals of links with error feedback; whoever commits rounds commits it, too.
    """

    def __init__(self, plan: Plan, device: str, feedback: ErrorFeedback) -> None:
        self._device = device
        self._uses = {(use.source, use.target): use for use in plan.links if use.codec != DENSE}
        self._kept: dict[tuple[Any, ...], torch.Tensor] = {}
        self._feedback = feedback
        self._loss_scale = UNSCALED

    def start_round(self, loss_scale: float = UNSCALED) -> None:
        """Drop what an earlier round left. loss_scale: of the round's gradients."""
        self._kept.clear()
        self._feedback.start_round()
        self._loss_scale = loss_scale

    def encode(self, action: Action, peer: str, values: Mapping[int, torch.Tensor], shape: Shape) -> CodedValues:
        """Return the message for a peer. Refused: a value that is not finite, where the codec cannot carry it."""
        use = self._uses.get((self._device, peer))
        if use is None:
            return CodedValues(values, {})
        tensors: dict[Any, torch.Tensor] = {}
        described: dict[str, Any] = {}
        for number, value in values.items():
            if shape(number) is None:
                tensors[number] = value
                continue
            sent = self._encode(action, use, number, value)
            tensors.update({f"{number}|{at}": part for at, part in enumerate(sent.parts)})
            described[str(number)] = sent.description
            self._keep(action, peer, number, sent.kept, (peer, self._device))
        return CodedValues(tensors, described)

    def _encode(self, action: Action, use: LinkUse, number: int, value: torch.Tensor) -> Encoded:
        """Encode a value, with the residual of its last message where the link has error feedback."""
        codec, kept = use.codec_of(action.letter), self._mask_of(action, use.target, number)
        if not use.feedback:
            return self._encode_finite(codec, action, value, use.ratio, kept)
        narrow = value.dtype.itemsize < ELEMENT_BYTES
        scale = self._loss_scale if value.dtype == torch.float16 and action.letter == BACKWARD else UNSCALED
        key, given = _residual_key(use, action, number), value.detach()
        whole = self._feedback.add(key, given.float() / scale if narrow else given)
        message = (whole * scale).to(value.dtype) if narrow else whole
        sent = self._encode_finite(codec, action, message, use.ratio, kept)
        known = kept if sent.description["codec"] == FORWARD_MASK else sent.kept
        decoded = decode(sent.description, sent.parts, whole.device, known)
        self._feedback.keep(key, whole - (decoded.float() / scale if narrow else decoded))
        return sent

    def _mask_of(self, action: Action, peer: str, number: int) -> torch.Tensor | None:
        """Return what the forward of this gradient kept, which is needed once; None of a forward."""
        return None if action.letter == FORWARD else self._kept.pop(_cut(action, peer, number), None)

    def _keep(self, action: Action, peer: str, number: int, kept: torch.Tensor | None, back: tuple[str, str]) -> None:
        """Remember what top-k kept of a forward, if its gradient crosses the link `back` at these elements."""
        use = self._uses.get(back)
        if action.letter == FORWARD and kept is not None and use is not None and use.codec == FORWARD_MASK:
            self._kept[_cut(action, peer, number)] = kept

    @staticmethod
    def _encode_finite(
        codec: str, action: Action, value: torch.Tensor, ratio: float, kept: torch.Tensor | None
    ) -> Encoded:
        """Encode a value; a gradient in float16 that has overflowed travels dense."""
        overflowed = action.letter == BACKWARD and value.dtype == torch.float16 and not bool(value.isfinite().all())
        return encode(DENSE if overflowed else codec, value, ratio, kept)

    def decode(self, action: Action, peer: str, arrival: Arrival, samples: int, shape: Shape) -> Arrival:
        """Return an arrival with all values as they were sent, losses aside. Refused: a malformed message."""
        if not arrival.described:
            return arrival
        tensors = {number: tensor for number, tensor in arrival.tensors.items() if "|" not in str(number)}
        try:
            device = next(tensor.device for tensor in arrival.tensors.values())
            for name, description in arrival.described.items():
                number = int(name)
                expected = [samples, *(shape(number) or ())]
                if description["shape"] != expected:
                    raise ValueError(f"a shape of {description['shape']}, not {expected}")
                count = sum(1 for key in arrival.tensors if str(key).startswith(f"{number}|"))
                parts = [arrival.tensors[f"{number}|{at}"] for at in range(count)]
                kept = self._mask_of(action, peer, number)
                if action.letter == FORWARD:
                    kept = kept_indices(description, parts)
                    self._keep(action, peer, number, kept, (self._device, peer))
                own = kept if action.letter == FORWARD or description["codec"] == "forward-mask" else None
                tensors[number] = decode(description, parts, device, own)
        except DEVICE_ERRORS:
            raise
        except (AttributeError, KeyError, StopIteration, TypeError, ValueError, RuntimeError) as error:
            raise Refused(f"{peer} sent {action} in a codec that cannot be read ({error})") from None
        return replace(arrival, tensors=tensors)


def _residual_key(use: LinkUse, action: Action, number: int) -> str:
    return f"{use.source}>{use.target}|{action}|{number}"


def lane_of_residual(key: str) -> str:
    """Return the lane whose messages a residual is of."""
    return parse_action(key.split("|")[1]).lane


def _cut(action: Action, peer: str, number: int) -> tuple[Any, ...]:
    """Return what identifies a value at a cut, for its forward and its gradient alike."""
    low = action.segment if action.letter == FORWARD else action.segment - 1
    return action.lane, low, action.micro_batch, peer, number
