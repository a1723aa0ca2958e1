"""fp16 and bf16, and int8 and int4 in groups of 64 elements of a sample with a scale each, optionally rotated.

bf16 rounds to nearest; finite values beyond its largest become that. fp16 first divides each sample by the power of two
that brings its largest finite magnitude into [2^14, 2^15), so that large activations do not overflow and small
gradients do not vanish. Both keep infinities and NaN as they are.

A group with largest magnitude m has the scale m / 127 (m / 7 for int4), rounded up to a bfloat16. Codes are the
elements in units of the scale, rounded to nearest, so that no element is off by more than half a scale. Groups below
SMALLEST become zeros.

The rotation is TAH-Quant's (He et al., 2025, arXiv:2506.01352): a Hadamard matrix spreads an outlier over its whole
group, and decoding rotates back. Unlike there, scales are symmetric, no pivot is swapped and all groups have equally
many bits, so that a group needs nothing but its scale. Elements are first rounded to integers of 17 bits relative to
the group, so that every sum of the rotation is exact: the result is the same whatever library adds in whatever order.

The torch code here says what groups become. On a CPU `native` does the same in one pass, where it could be compiled.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache

import torch

from fleetune.codecs import native
from fleetune.contracts.link_codecs import GROUP_ELEMENTS, PACKED, ROTATED

CHUNK = 1 << 15
"""Elements per step: buffers stay in the cache of a core."""
BF16_MAX = float(torch.finfo(torch.bfloat16).max)
_LARGEST_EXPONENT = 15
"""Scaled magnitudes are below 2 to this power."""
_MIN_EXPONENT, _MAX_EXPONENT = -126, 113
_BELOW_LIMIT = 32752.0
"""Largest half below 2^15, which times 2^113 is still finite in float32."""


def power_of_two(exponent: torch.Tensor) -> torch.Tensor:
    """Return 2 to integer exponents in -126..127, exactly, as float32."""
    return ((exponent.to(torch.int32) + 127) << 23).view(torch.float32)


def to_bf16(values: torch.Tensor) -> torch.Tensor:
    """Return float32 values as bfloat16."""
    if values.numel():
        low, high = torch.aminmax(values)
        if not (high <= BF16_MAX and low >= -BF16_MAX):
            values = torch.where(values.isfinite(), values.clamp(-BF16_MAX, BF16_MAX), values)
    return values.to(torch.bfloat16)


def largest_magnitudes(rows: torch.Tensor) -> torch.Tensor:
    """Return the largest magnitude of each row, NaN where the row has one."""
    return torch.maximum(rows.amax(1), -rows.amin(1))


def to_fp16(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return [samples, elements] float16 and [samples] int16 exponents, from float32 rows that are not empty."""
    largest = largest_magnitudes(rows)
    strange = ~largest.isfinite()
    if strange.any():
        some = rows[strange]
        largest[strange] = torch.where(some.isfinite(), some, 0.0).abs().amax(1)
    exponents = (torch.frexp(largest)[1] - _LARGEST_EXPONENT).clamp_(min=_MIN_EXPONENT)
    factors = power_of_two(-exponents)
    halves = torch.empty(rows.shape, dtype=torch.float16, device=rows.device)
    for given, factor, out in zip(*_chunks(rows, factors), _pieces(halves), strict=True):
        out.copy_(given * factor)
    at_limit = exponents == _MAX_EXPONENT
    if at_limit.any():
        some = halves[at_limit]
        halves[at_limit] = torch.where(some.isfinite(), some.clamp(-_BELOW_LIMIT, _BELOW_LIMIT), some)
    return halves, exponents.to(torch.int16)


def from_fp16(halves: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
    """Return float32 rows."""
    rows = torch.empty(halves.shape, dtype=torch.float32, device=halves.device)
    factors = power_of_two(exponents.clamp(_MIN_EXPONENT, _MAX_EXPONENT))
    for given, factor, out in zip(*_chunks(halves, factors), _pieces(rows), strict=True):
        out.copy_(given)
        out.mul_(factor)
    return rows


def _pieces(rows: torch.Tensor) -> list[torch.Tensor]:
    """Return views of at most about CHUNK elements: several short rows, or parts of one long row."""
    samples, elements = rows.shape
    if elements <= CHUNK:
        return list(rows.split(max(1, CHUNK // max(1, elements))))
    return [part for row in rows.split(1) for part in row.split(CHUNK, dim=1)]


def _chunks(rows: torch.Tensor, factors: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the pieces of the rows, and of each piece its rows' factors, [rows, 1]."""
    samples, elements = rows.shape
    column = factors[:, None]
    if elements <= CHUNK:
        return _pieces(rows), list(column.split(max(1, CHUNK // max(1, elements))))
    parts = -(-elements // CHUNK)
    return _pieces(rows), [row for row in column.split(1) for _ in range(parts)]


CHUNK_GROUPS = 2048
"""Groups per step: buffers stay in the cache of a core."""
SMALLEST = 2.0**-100
"""Groups whose largest magnitude is below this are sent as zeros."""
_GRID_BITS = 17
"""64 integers of 17 bits sum to less than 2^24, which float32 holds exactly."""
_LARGE_SCALE = 2.0**100
_LARGEST = float(torch.finfo(torch.float32).max)
_LOW_NIBBLES, _HIGH_NIBBLES = 0x0F0F, -0x0F10
"""Masks of the low and of the high four bits of both bytes of an int16."""


def levels(codec: str) -> int:
    """Return the largest code."""
    return 7 if codec in PACKED else 127


def quantise(codec: str, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return codes [samples, bytes], scales [samples, groups] as bits of bfloat16, and the groups' largest magnitudes.

    `rows` is float32 [samples, elements]. Codes of rows with magnitudes that are not finite mean nothing.
    """
    return (native.quantise if native.usable(rows) else quantise_by_torch)(codec, rows)


def quantise_by_torch(codec: str, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Do as `quantise`, on any device."""
    samples, elements = rows.shape
    count = -(-elements // GROUP_ELEMENTS)
    groups = _padded(rows, count * GROUP_ELEMENTS).view(-1, GROUP_ELEMENTS)
    largest = magnitudes = _largest_magnitudes(groups)
    used = largest >= SMALLEST
    unit: torch.Tensor | float = 1.0
    if codec in ROTATED:
        exponents = torch.frexp(largest)[1].clamp_(-99, 128)
        groups, magnitudes = _rotated(groups, power_of_two(_GRID_BITS - exponents))
        unit = power_of_two(exponents - _GRID_BITS) / GROUP_ELEMENTS  # rotating back multiplies by that
    most = magnitudes.new_full((), levels(codec))  # a GPU multiplies by the inverse of a number, which rounds otherwise
    rounded_up = ((magnitudes / most).view(torch.int32) + 0xFFFF) >> 16
    scale = (rounded_up << 16).view(torch.float32)
    codes = _rounded(groups, torch.where(used, 1.0 / scale, 0.0), packed=codec in PACKED).view(samples, -1)
    scales = (torch.where(used, scale * unit, 0.0).view(torch.int32) >> 16).to(torch.int16).view(samples, count)
    kept = count * GROUP_ELEMENTS if codec in ROTATED else elements
    return codes[:, : -(-kept // 2) if codec in PACKED else kept].contiguous(), scales, largest


def _largest_magnitudes(groups: torch.Tensor) -> torch.Tensor:
    largest = torch.empty(len(groups), device=groups.device)
    buffer = torch.empty((CHUNK_GROUPS, GROUP_ELEMENTS), device=groups.device)
    for given, out in zip(groups.split(CHUNK_GROUPS), largest.split(CHUNK_GROUPS), strict=True):
        torch.amax(torch.abs(given, out=buffer[: len(given)]), 1, out=out)
    return largest


def _rounded(groups: torch.Tensor, factors: torch.Tensor, packed: bool) -> torch.Tensor:
    """Return the groups times their factors, rounded to int8, or packed two in a byte, the first in the low half."""
    width = GROUP_ELEMENTS // 2 if packed else GROUP_ELEMENTS
    codes = torch.empty((len(groups), width), dtype=torch.uint8 if packed else torch.int8, device=groups.device)
    buffer = torch.empty((CHUNK_GROUPS, GROUP_ELEMENTS), device=groups.device)
    whole = torch.empty(buffer.shape, dtype=torch.int8, device=groups.device)
    for given, factor, out in zip(*(x.split(CHUNK_GROUPS) for x in (groups, factors[:, None], codes)), strict=True):
        rounded = torch.mul(given, factor, out=buffer[: len(given)]).round_()
        if packed:
            pairs = whole[: len(given)].copy_(rounded).view(torch.int16).bitwise_and_(_LOW_NIBBLES)
            out.copy_(pairs.bitwise_or_(pairs >> 4))
        else:
            out.copy_(rounded)
    return codes


def _rotated(groups: torch.Tensor, factors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the groups times their factors, rounded to integers and multiplied by the Hadamard matrix, and the largest
    magnitudes of these."""
    rotated, largest = torch.empty_like(groups), torch.empty(len(groups), device=groups.device)
    matrix = _hadamard(groups.device)
    buffer = torch.empty((CHUNK_GROUPS, GROUP_ELEMENTS), device=groups.device)
    chunks = (x.split(CHUNK_GROUPS) for x in (groups, factors[:, None], rotated, largest))
    for given, factor, out, most in zip(*chunks, strict=True):
        used = buffer[: len(given)]
        _multiply(torch.mul(given, factor, out=used).round_(), matrix, out)
        torch.amax(torch.abs(out, out=used), 1, out=most)
    return rotated, largest


def _multiply(integers: torch.Tensor, matrix: torch.Tensor, out: torch.Tensor) -> None:
    """Multiply so that every sum is exact: a GPU that may use TF32, as some images ask, keeps 11 of 17 bits."""
    with _without_tf32() if integers.is_cuda else nullcontext():
        torch.mm(integers, matrix, out=out)


@contextmanager
def _without_tf32() -> Iterator[None]:
    matmul = torch.backends.cuda.matmul
    allowed, matmul.allow_tf32 = matmul.allow_tf32, False
    try:
        yield
    finally:
        matmul.allow_tf32 = allowed


def dequantise(codec: str, codes: torch.Tensor, scales: torch.Tensor, elements: int) -> torch.Tensor:
    """Return float32 rows [samples, elements] of codes [samples, bytes] int8 or uint8 and scales as `quantise` has."""
    return (native.dequantise if native.usable(codes) else dequantise_by_torch)(codec, codes, scales, elements)


def dequantise_by_torch(codec: str, codes: torch.Tensor, scales: torch.Tensor, elements: int) -> torch.Tensor:
    """Do as `dequantise`, on any device.

    Ordinary codes get their unit before they are rotated back, while they are in the cache: a unit has 8 bits and a sum
    of 64 codes 14, so that no order rounds anything. Units so large that a sum might overflow are multiplied last.
    """
    samples, count = scales.shape
    packed, rotated = codec in PACKED, codec in ROTATED
    width = GROUP_ELEMENTS // 2 if packed else GROUP_ELEMENTS
    factors = (scales.reshape(-1).to(torch.int32) << 16).view(torch.float32)
    given = _padded(codes, count * width).view(-1, width)
    rows = torch.empty((len(given), GROUP_ELEMENTS), device=codes.device)
    buffer = torch.empty((CHUNK_GROUPS, GROUP_ELEMENTS), device=codes.device)
    units = (factors / 16 if packed else factors)[:, None]
    ordinary = bool(factors.abs().max() < _LARGE_SCALE)
    for some, unit, out in zip(*(x.split(CHUNK_GROUPS) for x in (given, units, rows)), strict=True):
        whole = _unpacked(some) if packed else some
        if rotated:
            floats = buffer[: len(out)].copy_(whole)
            _multiply(floats.mul_(unit) if ordinary else floats, _hadamard(codes.device), out)
            if not ordinary:
                out.mul_(unit)
        else:
            torch.mul(whole, unit, out=out)
    if not ordinary:
        rows.clamp_(-_LARGEST, _LARGEST)
    return rows.view(samples, -1)[:, :elements].contiguous()


def _unpacked(packed: torch.Tensor) -> torch.Tensor:
    """Return int8 codes times 16: each in the high half of a byte, where its sign is the byte's."""
    pairs = packed.view(torch.uint8).to(torch.int16)
    low = pairs << 4
    return pairs.bitwise_left_shift_(8).bitwise_or_(low).bitwise_and_(_HIGH_NIBBLES).view(torch.int8)


def _padded(rows: torch.Tensor, width: int) -> torch.Tensor:
    """Return contiguous rows with zeros up to `width`; the same memory where nothing is missing."""
    if rows.shape[1] == width:
        return rows.contiguous()
    wide = torch.zeros((rows.shape[0], width), dtype=rows.dtype, device=rows.device)
    wide[:, : rows.shape[1]] = rows
    return wide


@cache
def _hadamard(device: torch.device) -> torch.Tensor:
    """Return Sylvester's Hadamard matrix of a group; it is symmetric, and its square is 64 times the identity."""
    matrix = torch.ones(1, 1)
    while len(matrix) < GROUP_ELEMENTS:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix.to(device)
