"""Encoding of a tensor in any codec, decoding of what came from a link, which is not trusted, and error feedback.

Error feedback: what a lossy message left out is added to the next message of the same key. After Seide et al., 1-Bit
Stochastic Gradient Descent and its Application to Data-Parallel Distributed Training of Speech DNNs, Interspeech 2014.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fleetune.codecs.quantization import dequantise, from_fp16, quantise, to_bf16, to_fp16
from fleetune.codecs.top_k import gather, largest_indices, pack_indices, scatter, unpack_indices
from fleetune.contracts.link_codecs import (
    BF16,
    CODECS,
    DENSE,
    ELEMENT_BYTES,
    FORWARD_MASK,
    FP16,
    GROUP_ELEMENTS,
    KEPT_VALUE_BYTES,
    SCALE_BYTES,
    SPARSE,
    TOP_K,
    coded_sample_bytes,
    effective_codec,
    index_format,
    kept_elements,
)
from fleetune.errors import Refused

DTYPES = {str(d).removeprefix("torch."): d for d in (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64,
)}  # fmt: skip
CPU = torch.device("cpu")
HALF_MAX = float(torch.finfo(torch.float16).max)
Description = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Encoded:
    """A coded tensor, ready for the wire."""

    description: dict[str, Any]
    """JSON-able: `codec` (dense where another would save nothing), `dtype`, `shape`; for sparse codecs `kept`."""
    parts: tuple[torch.Tensor, ...]
    """Contiguous tensors, a part of a message each; on the device of the tensor, but for those of top-k on the CPU."""
    kept: torch.Tensor | None = None
    """[samples, kept] ascending int64 indices of what top-k kept: the mask for the gradient. None for other codecs."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.numel() * part.element_size() for part in self.parts)


def encode(codec: str, tensor: torch.Tensor, ratio: float = 1.0, kept: torch.Tensor | None = None) -> Encoded:
    """Encode a tensor whose first dimension is samples; one in `ratio` elements is kept by the sparse codecs.

    `kept` is what the forward's top-k kept, for forward-mask; without it, the forward was dense, and so is the
    gradient. Tensors of integers or booleans, and those for which the codec saves nothing, are dense. Refused: an
    unknown codec; a value that is not finite in a codec other than dense, fp16 and bf16.
    """
    given = tensor.detach()
    samples, elements = _rows(given.shape)
    effective = effective_codec(codec, elements, ratio, given.element_size())
    unmasked = effective == FORWARD_MASK and kept is None
    if unmasked or not given.is_floating_point() or not given.numel() or not given.dim():
        effective = DENSE
    described: dict[str, Any] = {
        "codec": effective,
        "dtype": str(given.dtype).removeprefix("torch."),
        "shape": list(given.shape),
    }
    if effective == DENSE:
        return Encoded(described, (given.contiguous(),))
    rows = _float32(given, codec).reshape(samples, elements)
    if effective in SPARSE:
        return _encode_sparse(described, _on_host(rows), kept_elements(elements, ratio), kept)
    parts: tuple[torch.Tensor, ...]
    if effective == FP16:
        parts = to_fp16(rows.contiguous())
    elif effective == BF16:
        parts = (to_bf16(rows).contiguous(),)
    else:
        codes, scales, largest = quantise(effective, rows)
        if not largest.isfinite().all():
            raise _not_finite(codec, described)
        parts = (codes, scales)
    return Encoded(described, parts)


def _encode_sparse(described: dict[str, Any], rows: torch.Tensor, count: int, kept: torch.Tensor | None) -> Encoded:
    if described["codec"] == FORWARD_MASK:
        assert kept is not None
        if kept.shape[0] != rows.shape[0]:
            raise Refused(
                f"codec {FORWARD_MASK}: the forward had {kept.shape[0]} samples, the gradient has {rows.shape[0]}"
            )
        values = gather(rows, kept)
        if not values.isfinite().all():
            raise _not_finite(FORWARD_MASK, described)
        return Encoded(described | {"kept": kept.shape[1]}, (values,))
    found = largest_indices(rows.contiguous(), count)
    if found is None:
        raise _not_finite(TOP_K, described)
    indices = torch.from_numpy(found)
    packed = torch.from_numpy(pack_indices(found, rows.shape[1]))
    return Encoded(described | {"kept": count}, (gather(rows, indices), packed), indices)


def decode(
    description: Description,
    parts: Sequence[torch.Tensor],
    device: torch.device = CPU,
    kept: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the tensor, on `device`. Parts are tensors of any type over the bytes of `Encoded.parts`.

    `kept` is what the forward's top-k kept, for forward-mask; for top-k it may be given to save finding it again. A
    dense tensor on the CPU may share the memory of its part. ValueError, KeyError, TypeError: a malformed description,
    or parts that do not fit it. The shape is the sender's word, and sparse parts are smaller than it says: compare it
    with the expected one before.
    """
    sizes = part_bytes(description)
    if [part.numel() * part.element_size() for part in parts] != list(sizes):
        raise ValueError(f"parts of {[part.numel() * part.element_size() for part in parts]} bytes, not {list(sizes)}")
    codec, dtype, shape = description["codec"], DTYPES[description["dtype"]], description["shape"]
    samples, elements = _rows(shape)
    flat = [part.reshape(-1).view(torch.uint8) for part in parts]
    if codec == DENSE:
        return (flat[0].view(dtype) if flat[0].numel() else torch.empty(0, dtype=dtype)).view(shape).to(device)
    if codec in SPARSE:
        found = kept_indices(description, parts) if kept is None else kept
        if found is None or tuple(found.shape) != (samples, description["kept"]):
            raise ValueError(f"codec {codec} needs the indices that the forward kept")
        values = flat[0].view(torch.bfloat16).view(samples, -1).to(device)
        rows = scatter(values, _on_device(found, device), elements)
    elif codec == FP16:
        rows = from_fp16(flat[0].view(torch.float16).view(samples, -1).to(device), flat[1].view(torch.int16).to(device))
    elif codec == BF16:
        rows = flat[0].view(torch.bfloat16).to(device).float()
    else:
        codes = flat[0].view(torch.int8).view(samples, -1).to(device)
        scales = flat[1].view(torch.int16).view(samples, -1).to(device)
        if not scales.view(torch.bfloat16).isfinite().all():
            raise ValueError(f"codec {codec} has a scale that is not finite")
        rows = dequantise(codec, codes, scales, elements)
    return _narrowed(rows, dtype).view(shape)


def kept_indices(description: Description, parts: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return [samples, kept] indices of a top-k message, None for other codecs; ValueError if they are malformed."""
    if description["codec"] != TOP_K:
        return None
    if len(parts) != 2:
        raise ValueError(f"codec {TOP_K} in {len(parts)} parts, not 2")
    samples, elements = _rows(description["shape"])
    packed = parts[1].reshape(-1).view(torch.uint8).view(samples, -1).cpu().numpy()
    return torch.from_numpy(unpack_indices(packed, elements, description["kept"]))


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in this process's memory; from a GPU through page-locked memory."""
    if not tensor.is_cuda:
        return tensor.cpu()
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor)


def _on_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor on a device; to a GPU through page-locked memory, in the order of what is launched there."""
    if device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def part_bytes(description: Description) -> tuple[int, ...]:
    """Return the bytes of each part that a description announces; ValueError or KeyError: a malformed description."""
    codec, dtype, shape = description["codec"], DTYPES[description["dtype"]], description["shape"]
    if codec not in CODECS or not isinstance(shape, list) or not all(_is_size(size) for size in shape):
        raise ValueError(f"codec {codec!r} of shape {shape!r}")
    samples, elements = _rows(shape)
    if codec == DENSE:
        return (samples * elements * dtype.itemsize,)
    if not dtype.is_floating_point or not samples * elements:
        raise ValueError(f"codec {codec} of {dtype}, shape {shape}")
    if codec in SPARSE:
        kept = description["kept"]
        if not _is_size(kept) or not 0 < kept <= elements:
            raise ValueError(f"codec {codec} keeps {kept!r} of {elements} elements")
        indices = (samples * index_format(elements, kept).size_bytes,) if codec == TOP_K else ()
        return (samples * kept * KEPT_VALUE_BYTES, *indices)
    whole = coded_sample_bytes(codec, elements, 1.0)
    beside = {FP16: SCALE_BYTES, BF16: 0}.get(codec, -(-elements // GROUP_ELEMENTS) * SCALE_BYTES)
    return (samples * (whole - beside), *((samples * beside,) if beside else ()))


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _rows(shape: Sequence[int]) -> tuple[int, int]:
    """Return the number of samples and of elements per sample; a number without dimensions is one sample."""
    elements = 1
    for size in shape[1:]:
        elements *= size
    return (shape[0] if len(shape) else 1), elements


def _float32(tensor: torch.Tensor, codec: str) -> torch.Tensor:
    """Return a tensor as float32; Refused if a finite value is beyond its range."""
    if tensor.dtype == torch.float32 or tensor.element_size() < ELEMENT_BYTES:
        return tensor.float()
    small = tensor.float()
    if (small.isinf() & tensor.isfinite()).any():
        raise Refused(f"codec {codec}: a value is beyond float32's range; send the tensor dense")
    return small


def _narrowed(rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return float32 rows in the tensor's type; what rounding brought above the largest float16 becomes that."""
    if dtype == torch.float16:
        rows = torch.where(rows.isfinite(), rows.clamp(-HALF_MAX, HALF_MAX), rows)
    return rows.to(dtype)


def _not_finite(codec: str, described: Description) -> Refused:
    half = "float16 ends at 65504: give model.mixed_precision bf16. " if described["dtype"] == "float16" else ""
    return Refused(
        f"codec {codec}: a value is not finite. {half}If training has diverged, choose a smaller learning_rate; a "
        "tensor that may hold infinities, such as a mask, has to travel dense"
    )


class ErrorFeedback:
    """Residuals by key, which belong to the state of committed rounds.

    Within a round each key sends one message. What messages leave out counts from `commit` on; a round that is thrown
    away changes no residual, nor does one in which a key's lane took no step. A key that otherwise sends nothing in a
    committed round, as those of another plan, is forgotten, and a key without a residual of its message's shape starts
    anew: it has lost at most what its last message left out.
    """

    def __init__(self) -> None:
        self._residuals: dict[str, torch.Tensor] = {}
        self._next: dict[str, torch.Tensor | None] = {}

    def start_round(self) -> None:
        """Drop what an uncommitted round left."""
        self._next.clear()

    def add(self, key: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor plus the key's residual: what to encode. Without a residual of its shape, the tensor."""
        residual = self._residuals.get(key)
        if residual is None or residual.shape != tensor.shape:
            return tensor
        return tensor + residual.to(tensor)

    def keep(self, key: str, sent_minus_decoded: torch.Tensor) -> None:
        """Keep the error of the key's message for the time after the commit; one that is not finite counts as none.

        It is not copied: nobody may change it.
        """
        error = sent_minus_decoded.detach()
        self._next[key] = error if error.isfinite().all() else None

    def commit(self, unchanged: Callable[[str], bool] = lambda key: False) -> None:
        """Keep the residuals of the keys that have sent a message in this round; of others, those that stay unchanged.

        unchanged: returns whether a key's residual stays as it was before the round.
        """
        stay = {key: error for key, error in self._residuals.items() if unchanged(key)}
        new = {key: error for key, error in self._next.items() if error is not None and not unchanged(key)}
        self._residuals = stay | new
        self._next.clear()

    def state(self) -> dict[str, torch.Tensor]:
        """Return the committed residuals by key."""
        return dict(self._residuals)

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take over the residuals of a checkpoint."""
        self._residuals = dict(state)
        self._next.clear()
