"""Dropout that does not depend on how a model or a micro-batch is cut.

Before a unit runs, the generator is seeded from (seed, round, micro-batch, unit). A device that holds only some
samples of the micro-batch draws every mask for the whole micro-batch and uses its own rows; random functions for which
this is not known are refused there. A device that holds all samples runs torch's own functions.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from fleetune.errors import Refused


def unit_seed(seed: int, round: int, micro_batch: int, unit: str) -> int:
    """The generator seed of one unit in one micro-batch of one round (63 bits)."""
    text = f"{seed}/{round}/{micro_batch}/{unit}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


@dataclass(frozen=True, slots=True)
class Draws:
    """Which draws a forward makes: of which micro-batch, and for which of its samples."""

    seed: int
    round: int
    micro_batch: int
    first: int
    """First of this device's samples within the micro-batch."""
    samples: int
    """Of the whole micro-batch."""

    def begin(self, unit: str) -> None:
        """Seed every generator for a unit."""
        key = unit_seed(self.seed, self.round, self.micro_batch, unit)
        torch.default_generator.manual_seed(key)
        if torch.cuda.is_available():
            torch.cuda.manual_seed(key)


class SlicedDraws(TorchFunctionMode):
    """Makes random functions draw for the whole micro-batch and keep the rows of this device's samples."""

    def __init__(self, draws: Draws, own_samples: int) -> None:
        super().__init__()
        self._draws = draws
        self._own = own_samples

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        rule = _RULES.get(func)
        if rule is not None:
            return rule(self, func, *args, **kwargs)
        if getattr(func, "__name__", "") == "__get__":
            return func(*args, **kwargs)
        before = _drawn()
        out = func(*args, **kwargs)
        if not torch.equal(before, _drawn()):
            raise Refused(
                f"model: {func.__name__} draws random numbers that cannot be divided by samples; give its segment "
                "one device"
            )
        return out

    def _rows(self, whole: torch.Tensor) -> torch.Tensor:
        first = self._draws.first
        return whole[first : first + self._own]

    def _whole_shape(self, shape: torch.Size | tuple[int, ...]) -> tuple[int, ...]:
        if not shape or shape[0] != self._own:
            raise Refused(
                f"model: a random tensor of shape {tuple(shape)} does not start with this device's {self._own} "
                "samples; give its segment one device"
            )
        return (self._draws.samples, *shape[1:])

    def mask(self, like: torch.Tensor, p: float) -> torch.Tensor:
        """Rows of a dropout mask, scaled by 1/(1-p), drawn as torch.dropout draws it."""
        whole = torch.empty(self._whole_shape(like.shape), dtype=like.dtype, device=like.device)
        whole.bernoulli_(1.0 - p)
        if p < 1.0:
            whole.div_(1.0 - p)
        return self._rows(whole)

    def dropout(
        self, func: Any, input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Any:
        if not training or p == 0.0:
            return func(input, p, training)
        return input * self.mask(input, p)

    def torch_dropout(self, func: Any, input: torch.Tensor, p: float, train: bool) -> Any:
        return self.dropout(func, input, p, train)

    def attention(self, func: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        """softmax(q k^T / sqrt(d) + mask) v with dropout on the weights; only where there is dropout."""
        names = ("attn_mask", "dropout_p", "is_causal")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        p = float(given.get("dropout_p", 0.0))
        if p == 0.0:
            return func(query, key, value, *args, **kwargs)
        if given.get("enable_gqa"):
            repeat = query.shape[-3] // key.shape[-3]
            key, value = key.repeat_interleave(repeat, -3), value.repeat_interleave(repeat, -3)
        scale = given.get("scale") or query.shape[-1] ** -0.5
        weights = (query * scale**0.5) @ (key * scale**0.5).transpose(-2, -1)
        weights = weights + _attention_bias(weights, given.get("attn_mask"), bool(given.get("is_causal", False)))
        weights = torch._safe_softmax(weights, -1)  # of a row that may see nothing: zeros, as torch's own
        return (weights * self.mask(weights, p)) @ value

    def rand(self, func: Any, *shape: Any, **kwargs: Any) -> torch.Tensor:
        shape = shape or (kwargs.pop("size"),)
        sizes = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], tuple | list | torch.Size) else shape
        return self._rows(func(self._whole_shape(sizes), **kwargs))


def _drawn() -> torch.Tensor:
    """Changes whenever a number is drawn."""
    state: torch.Tensor = torch.default_generator.get_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        offsets = [generator.get_offset() for generator in torch.cuda.default_generators]
        state = torch.cat([state, torch.tensor(offsets).view(torch.uint8)])
    return state


def _attention_bias(weights: torch.Tensor, mask: torch.Tensor | None, causal: bool) -> torch.Tensor:
    bias = torch.zeros((), dtype=weights.dtype, device=weights.device)
    if causal:
        allowed = torch.ones(weights.shape[-2:], dtype=torch.bool, device=weights.device).tril()
        bias = torch.zeros_like(weights[..., :1, :]).expand(weights.shape).masked_fill(~allowed, float("-inf"))
    if mask is not None:
        extra = (
            torch.zeros_like(mask, dtype=weights.dtype).masked_fill(~mask, float("-inf"))
            if mask.dtype == torch.bool
            else mask
        )
        bias = bias + extra
    return bias


_RULES: dict[Any, Any] = {
    torch.nn.functional.dropout: SlicedDraws.dropout,
    torch.dropout: SlicedDraws.torch_dropout,
    torch.nn.functional.scaled_dot_product_attention: SlicedDraws.attention,
    torch.rand: SlicedDraws.rand,
    torch.randn: SlicedDraws.rand,
}
