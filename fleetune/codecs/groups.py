"""int8 and int4: groups of 64 elements of a sample with a scale each, optionally rotated.

A group with largest magnitude m has the scale m / 127 (m / 7 for int4), rounded up to a bfloat16. Codes are the
elements in units of the scale, rounded to nearest, so that no element is off by more than half a scale. Groups below
SMALLEST become zeros.

The rotation is TAH-Quant's (He et al., 2025, arXiv:2506.01352): a Hadamard matrix spreads an outlier over its whole
group, and decoding rotates back. Unlike there, scales are symmetric, no pivot is swapped and all groups have equally
many bits, so that a group needs nothing but its scale. Elements are first rounded to integers of 17 bits relative to
the group, so that every sum of the rotation is exact: the result is the same whatever library adds in whatever order.
"""

from functools import cache

import torch

from fleetune.codecs.halves import power_of_two
from fleetune.contracts.link_codecs import GROUP_ELEMENTS, INT4, INT4_HADAMARD, ROTATED

CHUNK_GROUPS = 1024
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
    return 7 if codec in (INT4, INT4_HADAMARD) else 127


def quantise(codec: str, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return codes [samples, bytes], scales [samples, groups] as bits of bfloat16, and the groups' largest magnitudes.

    `rows` is float32 [samples, elements]. Codes of rows with magnitudes that are not finite mean nothing.
    """
    samples, elements = rows.shape
    count = -(-elements // GROUP_ELEMENTS)
    groups = _padded(rows, count * GROUP_ELEMENTS).view(-1, GROUP_ELEMENTS)
    largest = magnitudes = _largest_magnitudes(groups)
    used = largest >= SMALLEST
    unit: torch.Tensor | float = 1.0
    if codec in ROTATED:
        exponents = torch.frexp(largest)[1].clamp_(-99, 128)
        groups = _rotated(groups, power_of_two(_GRID_BITS - exponents))
        magnitudes = _largest_magnitudes(groups)
        unit = power_of_two(exponents - _GRID_BITS) / GROUP_ELEMENTS  # rotating back multiplies by that
    rounded_up = ((magnitudes / levels(codec)).view(torch.int32) + 0xFFFF) >> 16
    scale = (rounded_up << 16).view(torch.float32)
    codes = _rounded(groups, torch.where(used, 1.0 / scale, 0.0)).view(samples, -1)
    scales = (torch.where(used, scale * unit, 0.0).view(torch.int32) >> 16).to(torch.int16).view(samples, count)
    kept = count * GROUP_ELEMENTS if codec in ROTATED else elements
    if codec in (INT4, INT4_HADAMARD):
        return _pack(codes)[:, : -(-kept // 2)].contiguous(), scales, largest
    return codes[:, :kept].contiguous(), scales, largest


def _largest_magnitudes(groups: torch.Tensor) -> torch.Tensor:
    largest = torch.empty(len(groups), device=groups.device)
    buffer = torch.empty((CHUNK_GROUPS, GROUP_ELEMENTS), device=groups.device)
    for given, out in zip(groups.split(CHUNK_GROUPS), largest.split(CHUNK_GROUPS), strict=True):
        torch.amax(torch.abs(given, out=buffer[: len(given)]), 1, out=out)
    return largest


def _rounded(groups: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Return the groups times their factors, rounded to int8."""
    codes = torch.empty(groups.shape, dtype=torch.int8, device=groups.device)
    buffer = torch.empty((CHUNK_GROUPS, GROUP_ELEMENTS), device=groups.device)
    for given, factor, out in zip(*(x.split(CHUNK_GROUPS) for x in (groups, factors[:, None], codes)), strict=True):
        out.copy_(torch.mul(given, factor, out=buffer[: len(given)]).round_())
    return codes


def _rotated(groups: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Return the groups times their factors, rounded to integers and multiplied by the Hadamard matrix."""
    rotated = torch.empty_like(groups)
    matrix = _hadamard(groups.device)
    buffer = torch.empty((CHUNK_GROUPS, GROUP_ELEMENTS), device=groups.device)
    for given, factor, out in zip(*(x.split(CHUNK_GROUPS) for x in (groups, factors[:, None], rotated)), strict=True):
        torch.mm(torch.mul(given, factor, out=buffer[: len(given)]).round_(), matrix, out=out)
    return rotated


def dequantise(codec: str, codes: torch.Tensor, scales: torch.Tensor, elements: int) -> torch.Tensor:
    """Return float32 rows [samples, elements] of codes [samples, bytes] int8 or uint8 and scales as `quantise` has."""
    samples, count = scales.shape
    padded = count * GROUP_ELEMENTS
    factors = (scales.reshape(-1).to(torch.int32) << 16).view(torch.float32)
    if codec in (INT4, INT4_HADAMARD):
        factors = factors / 16  # nibbles are unpacked into the high half of a byte
        codes = _unpack(_padded(codes, padded // 2))
    groups = _padded(codes, padded).view(-1, GROUP_ELEMENTS)
    rows = torch.empty(groups.shape, device=codes.device)
    buffer = torch.empty((CHUNK_GROUPS, GROUP_ELEMENTS), device=codes.device)
    for first in range(0, len(groups), CHUNK_GROUPS):
        at = slice(first, first + CHUNK_GROUPS)
        if codec in ROTATED:
            given = buffer[: len(rows[at])].copy_(groups[at])
            torch.mm(given, _hadamard(codes.device), out=rows[at]).mul_(factors[at, None])
        else:
            torch.mul(groups[at], factors[at, None], out=rows[at])
    if len(factors) and not (factors.abs().max() < _LARGE_SCALE):
        rows.clamp_(-_LARGEST, _LARGEST)
    return rows.view(samples, padded)[:, :elements].contiguous()


def _pack(codes: torch.Tensor) -> torch.Tensor:
    """Return two codes of an even number in each byte, the first in the low half."""
    packed = torch.empty((codes.shape[0], codes.shape[1] // 2), dtype=torch.uint8, device=codes.device)
    pairs, out = codes.view(torch.int16).view(-1), packed.view(-1)
    step = CHUNK_GROUPS * GROUP_ELEMENTS
    for first in range(0, len(pairs), step):
        nibbles = pairs[first : first + step] & _LOW_NIBBLES
        out[first : first + step].copy_(nibbles.bitwise_or_(nibbles >> 4))
    return packed


def _unpack(packed: torch.Tensor) -> torch.Tensor:
    """Return int8 codes times 16."""
    codes = torch.empty((packed.shape[0], packed.shape[1] * 2), dtype=torch.int8, device=packed.device)
    pairs, given = codes.view(torch.int16).view(-1), packed.reshape(-1).view(torch.uint8)
    step = CHUNK_GROUPS * GROUP_ELEMENTS
    for first in range(0, len(pairs), step):
        bytes_ = given[first : first + step].to(torch.int16)
        low = bytes_ << 4
        torch.bitwise_and(
            bytes_.bitwise_left_shift_(8).bitwise_or_(low), _HIGH_NIBBLES, out=pairs[first : first + step]
        )
    return codes


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
