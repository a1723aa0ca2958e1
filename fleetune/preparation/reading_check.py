"""Checks what a model reads for what it says, before anything is trained.

What causal-lm and a decoder say of a token may depend only on the tokens before it; what is said of a text only on the
text, not on the padding behind it; and what is said of a sample not on the others of its micro-batch, since a group
deals these out. Families that break this train without an error: an encoder that reads both ways sees the token that
it predicts, and XLNet takes the padding for the end of the text.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn
from torch.utils import _pytree as pytree

from fleetune.contracts.input_spec import IGNORE_INDEX
from fleetune.contracts.tasks import SEQ2SEQ
from fleetune.data.prepared_data import DECODER_IDS, IDS, MASK
from fleetune.errors import Refused
from fleetune.models.batch_norms import with_kept_statistics
from fleetune.models.randomness import WithoutDraws
from fleetune.models.source import text_part

Tensors = Mapping[str, torch.Tensor]
LOOKED_AT = 16
"""Tokens in which a look ahead is searched for: of a long text, one token says little to each other one."""
ROUNDING = 20.0
"""What is accepted of a look ahead, as a multiple of the measured rounding."""


def check_reading(model: nn.Module, inputs: Tensors, labels: torch.Tensor, task: str) -> str | None:
    """Refuse a model that reads more than it may, in evaluation or in training, naming it. Sets it to training mode.

    Returns a sentence if what it reads in training could not be looked at.

    inputs: name -> tensor [samples, ...] of samples as they are trained. Of other samples and of padding, differences
    of more than half of a number's digits count, which rounding does not cause; of later tokens, all that are beyond
    the measured rounding; of all, those that are there in float64, too, since rounding sends a token whose experts all
    but tie to another one. In training nothing is drawn, and batch norms read what they have kept: devices that share
    samples draw alike, and none share those of a batch norm.
    """
    untold = None
    with torch.no_grad():
        _refuse(model.eval(), _changes(model, inputs, labels, task), "")
        kept = [buffer.clone() for buffer in model.buffers()]
        with torch.random.fork_rng(devices=[]), WithoutDraws():
            undrawn = torch.random.get_rng_state()
            changes = _changes(with_kept_statistics(model.train()), inputs, labels, task)
            if torch.equal(undrawn, torch.random.get_rng_state()):
                _refuse(model, changes, "in training, ")
            else:  # a sample alone draws other numbers
                untold = (
                    "what the model reads of other samples, of later tokens and of padding was looked at in evaluation "
                    "alone: in training it draws random numbers of a kind that is not known here"
                )
        for buffer, before in zip(model.buffers(), kept, strict=True):
            buffer.copy_(before)
    model.train()
    return untold


def _changes(model: nn.Module, inputs: Tensors, labels: torch.Tensor, task: str) -> tuple[float, float, float]:
    """How what is said changes with other samples, with later tokens and with padding; in float64 if that is much."""
    epsilon = _epsilon(model)

    def found(given: Tensors) -> tuple[float, float, float]:
        ahead = _of_later_tokens(model, given, labels, task, epsilon)
        return _of_other_samples(model, given), ahead, _of_padding(model, given, task)

    changes = found(inputs)
    if _fit(model, changes):
        return changes
    try:
        with _in_float64(model):
            again = found(
                {key: value.double() if value.is_floating_point() else value for key, value in inputs.items()}
            )
    except RuntimeError:  # a model that computes in one type alone
        return changes
    return changes if any(map(math.isnan, again)) else again  # masks may be numbers of one type


@contextmanager
def _in_float64(model: nn.Module) -> Iterator[None]:
    """Hold a model's numbers in float64, which keeps their values, and in their own types again afterwards."""
    floating = [tensor for tensor in (*model.parameters(), *model.buffers()) if tensor.is_floating_point()]
    types = [tensor.dtype for tensor in floating]
    try:
        for tensor in floating:
            tensor.data = tensor.data.double()
        yield
    finally:
        for tensor, own in zip(floating, types, strict=True):
            tensor.data = tensor.data.to(own)


def _fit(model: nn.Module, changes: tuple[float, float, float]) -> bool:
    beside, ahead, behind = changes
    return beside <= _half_of_the_digits(model) and not ahead and behind <= _half_of_the_digits(model)


def _refuse(model: nn.Module, changes: tuple[float, float, float], when: str) -> None:
    name = type(getattr(model, "get_base_model", lambda: model)()).__name__
    beside, ahead, behind = changes
    if not beside <= _half_of_the_digits(model):
        raise Refused(
            f"model: {when}what {name} says of a sample changes by {beside:.0e} of its size with the samples beside "
            "it, so it would depend on the plan; take a model of another family"
        )
    if ahead:
        raise Refused(
            f"model: {when}{name} reads the token that it is to predict: another last token changes what it says "
            f"of earlier ones by {ahead:.0e} of its size. Take a decoder, or set is_decoder to true in model.config "
            "where the family has that setting"
        )
    if not behind <= _half_of_the_digits(model):
        raise Refused(
            f"model: {when}what {name} says of a text changes by {behind:.0e} of its size with the padding behind it, "
            "so it would depend on data.max_length; take a model of another family"
        )


def _of_other_samples(model: nn.Module, inputs: Tensors) -> float:
    """Return the change of what is said of two samples when each is alone; more would take longer."""
    both, *each = ({key: value[part] for key, value in inputs.items()} for part in (slice(2), slice(1), slice(1, 2)))
    return _relative(_said(model, both), torch.cat([_said(model, one) for one in each]))


def _of_later_tokens(model: nn.Module, inputs: Tensors, labels: torch.Tensor, task: str, epsilon: float) -> float:
    """Return the change of what is said of earlier tokens when the last one of a sample is another one; 0.0 if rounding
    changes it as much, which is measured with the sample twice in a batch: experts sort the tokens of all samples."""
    if task not in ("causal-lm", SEQ2SEQ):
        return 0.0
    read = DECODER_IDS if task == SEQ2SEQ else IDS
    mask = labels != IGNORE_INDEX if task == SEQ2SEQ else inputs.get(MASK, torch.ones_like(inputs[IDS]))
    sample = int(mask.sum(1).argmax())
    last = int(mask[sample].nonzero().max())
    span = slice(max(0, last + 1 - LOOKED_AT), last + 1)
    beside = (read,) if task == SEQ2SEQ else tuple(key for key in inputs if inputs[key].shape[1:2] == mask.shape[1:])
    row = {key: value[sample : sample + 1] for key, value in inputs.items()}
    row |= {key: row[key][:, span] for key in beside}
    others = row[read][row[read] != row[read][0, -1]]
    if not len(others):
        return 0.0
    changed = row[read].clone()
    changed[0, -1] = others[0]
    said = _said(model, row)[:, :-1]
    twice = _said(model, {key: torch.cat([value, value]) for key, value in row.items()})[:1, :-1]
    change = _relative(_said(model, {**row, read: changed})[:, :-1], said)
    rounding = ROUNDING * max(_relative(twice, said), epsilon)
    return 0.0 if change <= min(rounding, epsilon**0.5) else change  # parts of a model in float64 stay in float32


def _of_padding(model: nn.Module, inputs: Tensors, task: str) -> float:
    """Return the change of what is said of the most padded sample when its padding is left out.

    If none is padded, one is shortened and padded: other samples of the data may be padded. Its last token stays, which
    some classifiers look for.
    """
    if MASK not in inputs:
        return 0.0
    mask = inputs[MASK]
    sample = int(mask.sum(1).argmin())
    row = {key: value[sample : sample + 1] for key, value in inputs.items()}
    tokens = int(mask[sample].sum())
    if tokens == mask.shape[1] > 1:
        tokens -= tokens // 2
        pad = getattr(text_part(cast(Any, model.config)), "pad_token_id", None) or 0
        ids = torch.full_like(row[IDS], pad)
        ids[:, :tokens] = torch.cat([row[IDS][:, : tokens - 1], row[IDS][:, -1:]], 1)
        row |= {IDS: ids, MASK: (torch.arange(ids.shape[1]) < tokens).to(mask.dtype)[None]}
    if tokens in (0, mask.shape[1]):
        return 0.0
    padded, alone = _said(model, row), _said(model, {**row, IDS: row[IDS][:, :tokens], MASK: row[MASK][:, :tokens]})
    return _relative(padded[:, :tokens] if task == "causal-lm" else padded, alone)


def _said(model: nn.Module, inputs: Tensors) -> torch.Tensor:
    result = model(**inputs)
    said: torch.Tensor = result.logits if hasattr(result, "logits") else pytree.tree_leaves(result)[0]
    return said.double()


def _relative(found: torch.Tensor, own: torch.Tensor) -> float:
    return float((found - own).norm() / own.norm().clamp_min(1e-30))


def _half_of_the_digits(model: nn.Module) -> float:
    return float(_epsilon(model) ** 0.5)


def _epsilon(model: nn.Module) -> float:
    floating = next(p.dtype for p in model.parameters() if p.is_floating_point())
    return float(torch.finfo(floating).eps)
