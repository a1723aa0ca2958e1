"""Dropout that does not depend on how a model or a micro-batch is cut.

Before a unit runs, the generator is seeded from (seed, round, micro-batch, unit). A device that holds only some
samples of the micro-batch draws every mask for the whole micro-batch and uses its own part. The recorded graph says
which dimension holds the samples, since a first dimension of 1 may be one sample or a value shared by all. Random
functions without such a record are refused. A device that holds all samples runs torch's own functions.
"""

import hashlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fleetune.errors import Refused
from fleetune.models.graph import RandomDraw


def unit_seed(seed: int, round: int, micro_batch: int, unit: str) -> int:
    """Return the generator seed of one unit in one micro-batch of one round (63 bits)."""
    text = f"{seed}/{round}/{micro_batch}/{unit}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


@dataclass(frozen=True, slots=True)
class RandomContext:
    """Identifies the random draws of a forward: its round, its micro-batch and this device's samples."""

    seed: int
    round: int
    micro_batch: int
    first: int
    """Index of this device's first sample within the micro-batch."""
    samples: int
    """Number of samples in the whole micro-batch."""

    def seed_unit(self, unit: str) -> None:
        """Seed all generators for a unit."""
        key = unit_seed(self.seed, self.round, self.micro_batch, unit)
        torch.default_generator.manual_seed(key)
        if torch.cuda.is_initialized():  # else a CPU's worker beside a GPU would remember every seed
            torch.cuda.manual_seed(key)


def like_random_output(func: Any, args: Any, kwargs: Any) -> torch.Tensor | None:
    """Return a tensor with the shape and strides of the numbers that a call of torch draws.

    None for a call that draws nothing, or what `draws_whole` names.
    """
    rule = _DRAWN.get(func)
    drawn: torch.Tensor | None = rule(*args, **kwargs) if rule is not None else None
    return drawn


def draws_whole(func: Any, args: Any, kwargs: Any) -> bool:
    """Return whether a call draws what has no rule here, so that no device can draw the part of its own samples.

    Calls that are not known here are found when a device runs them.
    """
    if getattr(func, "__name__", "") not in _WHOLE:
        return False
    try:
        given = inspect.signature(func).bind(*args, **kwargs)
    except ValueError:  # a function of C++, which has no signature
        return True
    given.apply_defaults()
    return bool(given.arguments.get("training", True)) and given.arguments.get("dropout_p") != 0.0


class ShardedDraws(TorchFunctionMode):
    """Makes random functions draw for the whole micro-batch and return the part of this device's samples."""

    def __init__(self, draws: RandomContext, own_samples: int, batch: str) -> None:
        """batch: the symbol of the number of samples in recorded shapes."""
        super().__init__()
        self._draws = draws
        self._own = own_samples
        self._batch = batch
        self._expected: Iterator[RandomDraw] = iter(())

    def expect(self, recorded: tuple[RandomDraw, ...]) -> None:
        """Set the recorded draws of the next operation."""
        self._expected = iter(recorded)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        drawn = like_random_output(func, args, kwargs)
        if drawn is not None:
            return _RULES[func](self, func, drawn, *args, **kwargs)
        if getattr(func, "__name__", "") == "__get__":
            return func(*args, **kwargs)
        before = _generator_state()
        out = func(*args, **kwargs)
        if not torch.equal(before, _generator_state()):
            raise Refused(
                f"model: {func.__name__} draws random numbers that cannot be divided by samples; give its segment "
                "one device"
            )
        return out

    def _shard_of(self, own: torch.Tensor, fill: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Return this device's part, of `own`'s shape, of a tensor that `fill` draws for the whole micro-batch."""
        recorded = next(self._expected, None)
        if recorded is None or len(recorded.shape) != own.dim():
            raise _unrecorded(own)
        dims = recorded.divided(self._batch)
        if dims is None:
            raise Refused(
                f"model: a random tensor of shape {tuple(own.shape)} has no dimension that is this device's "
                f"{self._own} samples; give its segment one device"
            )
        sizes = [self._draws.samples if dim in dims else int(size) for dim, size in enumerate(recorded.shape)]
        if any(size != own.shape[dim] for dim, size in enumerate(sizes) if dim not in dims):
            raise _unrecorded(own)
        empty = torch.empty([sizes[dim] for dim in recorded.order], dtype=own.dtype, device=own.device)
        whole = fill(empty.permute([recorded.order.index(dim) for dim in range(len(sizes))]))
        return whole.narrow(dims[0], self._draws.first, self._own) if dims else whole

    def mask(self, like: torch.Tensor, p: float) -> torch.Tensor:
        """Return this device's part of a dropout mask, scaled by 1/(1-p), drawn as torch.dropout draws it."""

        def fill(whole: torch.Tensor) -> torch.Tensor:
            if whole.is_cuda:  # torch's own kernel of a GPU draws in another order than bernoulli_
                return functional.dropout(torch.ones_like(whole), p)
            whole.bernoulli_(1.0 - p)
            return whole.div_(1.0 - p) if p < 1.0 else whole

        return self._shard_of(like, fill)

    def dropout(
        self, func: Any, drawn: Any, input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Any:
        return input * self.mask(input, p)

    def torch_dropout(self, func: Any, drawn: Any, input: torch.Tensor, p: float, train: bool) -> Any:
        return input * self.mask(input, p)

    def attention(self, func: Any, drawn: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Return softmax(q k^T / sqrt(d) + mask) v with dropout on the weights."""
        given = _of_attention(args, kwargs)
        if given.get("enable_gqa"):
            repeat = query.shape[-3] // key.shape[-3]
            key, value = key.repeat_interleave(repeat, -3), value.repeat_interleave(repeat, -3)
        scale = given.get("scale") or query.shape[-1] ** -0.5
        weights = (query * scale**0.5) @ (key * scale**0.5).transpose(-2, -1)
        weights = weights + _attention_bias(weights, given.get("attn_mask"), bool(given.get("is_causal", False)))
        weights = torch._safe_softmax(weights, -1)  # zeros for a fully masked row, as in torch
        return (weights * self.mask(weights, float(given["dropout_p"]))) @ value

    def rand(self, func: Any, drawn: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        uniform = func in (torch.rand, torch.rand_like)
        return self._shard_of(drawn, torch.Tensor.uniform_ if uniform else torch.Tensor.normal_)

    def filled(self, func: Any, drawn: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Fill a tensor in place; one without samples, as a move of all positions, gets the same on each device."""
        return tensor.copy_(self._shard_of(tensor, lambda whole: func(whole, *args, **kwargs)))


class WithoutDropout(TorchFunctionMode):
    """Dropout lets everything through, also where it was recorded as one of training."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (functional.dropout, torch.dropout):
            return args[0] if args else kwargs["input"]
        if func is functional.scaled_dot_product_attention:
            args, kwargs = (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args, {**kwargs}
            kwargs.pop("dropout_p", None)
        return func(*args, **kwargs)


class WithoutDraws(WithoutDropout):
    """Dropout lets everything through, and a drawn number is the mean of what may be drawn.

    Calls that are not known here draw as ever, which moves the generator.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        mean = _MEANS.get(func)
        if mean is None:
            return super().__torch_function__(func, types, args, kwargs)
        if func in (torch.rand, torch.randn):
            return _of_rand(*args, **kwargs).fill_(mean)
        if func in (torch.rand_like, torch.randn_like):
            return torch.empty_like(*args, **kwargs).fill_(mean)
        return args[0].fill_(mean(*args[1:], **kwargs))


class PartDraws:
    """Random numbers of the parts of one unit in one micro-batch."""

    def __init__(self, unit: str, draws: RandomContext, sharded: ShardedDraws | None) -> None:
        self._unit, self._draws, self._sharded = unit, draws, sharded

    @property
    def micro_batch(self) -> int:
        """Number of the micro-batch in its round."""
        return self._draws.micro_batch

    def start(self, part: str) -> None:
        """Seed the generators for a part of the unit."""
        self._draws.seed_unit(f"{self._unit}#{part}")

    def expect(self, recorded: tuple[RandomDraw, ...]) -> None:
        """Set the recorded draws of the next operation."""
        if self._sharded is not None:
            self._sharded.expect(recorded)


def _unrecorded(drawn: torch.Tensor) -> Refused:
    return Refused(
        f"model: a random tensor of shape {tuple(drawn.shape)} is drawn where none was recorded; profile the model "
        "again"
    )


def _of_dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    return input if training and p > 0.0 else None


def _of_torch_dropout(input: torch.Tensor, p: float, train: bool) -> Any:
    return input if train and p > 0.0 else None


def _attention_weights(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    drops = float(_of_attention(args, kwargs).get("dropout_p", 0.0)) > 0.0
    return query.new_empty((*query.shape[:-1], key.shape[-2])) if drops else None


def _of_attention(args: Any, kwargs: Any) -> dict[str, Any]:
    return {**dict(zip(("attn_mask", "dropout_p", "is_causal"), args, strict=False)), **kwargs}


def _of_rand(*size: Any, **kwargs: Any) -> Any:
    kwargs.pop("generator", None)
    return torch.empty(*size, **kwargs)


def _of_filled(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    return tensor


def _generator_state() -> torch.Tensor:
    """Return the state of the generators, which changes with every draw."""
    state: torch.Tensor = torch.default_generator.get_state()
    if torch.cuda.is_initialized():
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
    torch.nn.functional.dropout: ShardedDraws.dropout,
    torch.dropout: ShardedDraws.torch_dropout,
    torch.nn.functional.scaled_dot_product_attention: ShardedDraws.attention,
    torch.rand: ShardedDraws.rand,
    torch.randn: ShardedDraws.rand,
    torch.Tensor.uniform_: ShardedDraws.filled,
    torch.Tensor.normal_: ShardedDraws.filled,
    torch.Tensor.exponential_: ShardedDraws.filled,
    torch.rand_like: ShardedDraws.rand,
    torch.randn_like: ShardedDraws.rand,
}
_DRAWN: dict[Any, Any] = {
    torch.nn.functional.dropout: _of_dropout,
    torch.dropout: _of_torch_dropout,
    torch.nn.functional.scaled_dot_product_attention: _attention_weights,
    torch.rand: _of_rand,
    torch.randn: _of_rand,
    torch.Tensor.uniform_: _of_filled,
    torch.Tensor.normal_: _of_filled,
    torch.Tensor.exponential_: _of_filled,
    torch.rand_like: torch.empty_like,
    torch.randn_like: torch.empty_like,
}
_WHOLE = frozenset(
    "bernoulli bernoulli_ multinomial normal poisson binomial log_normal_ cauchy_ geometric_ randint randint_like "
    "random_ randperm rrelu gumbel_softmax alpha_dropout dropout1d dropout2d dropout3d feature_alpha_dropout "
    "multi_head_attention_forward".split()
)
"""Names of torch's other random functions."""
_MEANS: dict[Any, Any] = {
    torch.rand: 0.5,
    torch.rand_like: 0.5,
    torch.randn: 0.0,
    torch.randn_like: 0.0,
    torch.Tensor.uniform_: lambda lowest=0.0, highest=1.0, **kwargs: (lowest + highest) / 2,
    torch.Tensor.normal_: lambda mean=0.0, std=1.0, **kwargs: mean,
    torch.Tensor.exponential_: lambda rate=1.0, **kwargs: 1 / rate,
}
"""The mean of what a call draws; of one that fills a tensor, by its further arguments."""
