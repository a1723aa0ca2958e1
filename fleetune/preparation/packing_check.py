"""Checks that a model keeps the samples of a packed row apart, before anything is trained on packed rows.

A model of transformers learns from positions that begin anew where a sample begins. Some families read them, others
(with recurrent states, convolutions over time, or positions of their own) do not and would silently let a sample see
the one before it. So each sample of some packed rows is also run alone, and its logits must agree within rounding,
which is measured on the same samples with padding.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from fleetune.data.prepared_data import COUNTED_ROWS, IDS, MASK, POSITIONS, PreparedData, sample_spans
from fleetune.errors import Refused, first_line

ROWS = 2
"""Number of rows of several samples that are compared."""
FACTOR = 50.0
"""Largest accepted difference, as a multiple of the measured rounding."""
FLOAT32_EPS = torch.finfo(torch.float32).eps


def check_packing(model: nn.Module, data: PreparedData) -> None:
    """Refuse packed rows for a model in which a sample's logits depend on the samples beside it, naming the model.

    model: the whole model on the CPU; it is in training mode afterwards.
    """
    whole = getattr(model, "get_base_model", lambda: model)()
    model.eval()
    try:
        with torch.no_grad():
            worst, rounding = _differences(model, data)
    except (TypeError, ValueError, RuntimeError) as error:  # it does not take positions
        raise Refused(_in_words(whole, f"it does not run on them ({first_line(error)})")) from None
    finally:
        model.train()
    if not worst <= FACTOR * rounding:
        raise Refused(
            _in_words(whole, f"a sample's logits change by {worst:.0e} of their size when it is packed with others")
        )


def _differences(model: nn.Module, data: PreparedData) -> tuple[float, float]:
    """The largest relative difference of a sample's logits, packed and alone; and the one that rounding makes."""
    worst, rounding = 0.0, 0.0
    for batch, spans in _batches(data):
        together, positions = (torch.from_numpy(batch[name]) for name in (IDS, POSITIONS))
        packed, ids = model(**{IDS: together, POSITIONS: positions}).logits[0], together[:1]
        for first, end in spans:
            own = ids[:, first:end]
            alone = model(**{IDS: own, MASK: torch.ones_like(own)}).logits[0]
            padded, mask = torch.zeros_like(ids), torch.zeros_like(ids)
            padded[:, : end - first], mask[:, : end - first] = own, 1
            own_positions = torch.arange(ids.shape[1])[None].clamp_max(end - first - 1)  # none is larger than alone
            beside_padding = model(**{IDS: padded, MASK: mask, POSITIONS: own_positions}).logits[0, : end - first]
            worst = max(worst, _relative(packed[first:end], alone))
            rounding = max(rounding, _relative(beside_padding, alone), torch.finfo(alone.dtype).eps)
            rounding = max(rounding, min(_moved(model, own, first, ids.shape[1], alone), FLOAT32_EPS))
    return worst, rounding


def _moved(model: nn.Module, own: torch.Tensor, first: int, width: int, alone: torch.Tensor) -> float:
    """The relative change of a sample's logits when it stands where it is packed, with padding around it.

    Sums over the row are then those of the packed one. Families such as Gemma 2 make some in float32 also where the
    model is in float64. A model that reads padding changes by more, which is no rounding: FLOAT32_EPS limits it.
    """
    end = first + own.shape[1]
    ids, mask = torch.zeros(1, width, dtype=own.dtype), torch.zeros(1, width, dtype=own.dtype)
    ids[:, first:end], mask[:, first:end] = own, 1
    positions = (torch.arange(width)[None] - first).clamp(0, end - first - 1)
    return _relative(model(**{IDS: ids, MASK: mask, POSITIONS: positions}).logits[0, first:end], alone)


def _batches(data: PreparedData) -> Iterator[tuple[dict[str, np.ndarray], list[tuple[int, int]]]]:
    """Rows of all that are computed together, and the samples of the first one that are compared: the first rows of
    several samples, and the shortest sample of all beside the longest one.

    Some rotary embeddings (LongRoPE) choose their factors by the largest position of the whole batch.
    """
    shared, shortest, longest = list[int](), (data.shape(IDS)[0] + 1, 0), (0, 0)
    for first in range(0, data.size("train"), COUNTED_ROWS):
        block = range(first, min(first + COUNTED_ROWS, data.size("train")))
        positions = data.rows("train", block, {POSITIONS})[POSITIONS]
        follows = np.diff(positions, append=0) > 0  # another token of the sample
        lengths = np.where((positions > 0) & ~follows, positions + 1, 0)  # where a sample ends
        several = np.flatnonzero((lengths > 0).sum(axis=1) > 1)[:ROWS]
        shared += [first + int(row) for row in several]
        least, most = np.where(lengths > 0, lengths, shortest[0]).min(axis=1), lengths.max(axis=1)
        shortest = min(shortest, (int(least.min()), first + int(least.argmin())))
        longest = max(longest, (int(most.max()), first + int(most.argmax())))
    for number in shared[:ROWS]:
        row = data.rows("train", [number])
        yield row, sample_spans(row[POSITIONS][0])
    both = data.rows("train", [shortest[1], longest[1]])
    yield both, [span for span in sample_spans(both[POSITIONS][0]) if span[1] - span[0] == shortest[0]][:1]


def _relative(found: torch.Tensor, own: torch.Tensor) -> float:
    return float((found.double() - own.double()).norm() / own.double().norm().clamp_min(1e-30))


def _in_words(model: nn.Module, why: str) -> str:
    return (
        f"data: packing does not suit {type(model).__name__}, which does not keep the samples of a sequence apart: "
        f"{why}; set data.packing to false"
    )
