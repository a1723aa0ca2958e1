"""fp16 and bf16.

bf16 rounds to nearest; finite values beyond its largest become that. fp16 first divides each sample by the power of two
that brings its largest finite magnitude into [2^14, 2^15), so that large activations do not overflow and small
gradients do not vanish. Both keep infinities and NaN as they are.
"""

import torch

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
