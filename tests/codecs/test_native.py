"""quantiser.c gives the bits of the torch code, is there wherever it can be compiled, and is not needed."""

import _ctypes
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fleetune.codecs import decode, encode, native
from fleetune.codecs.quantization import dequantise, dequantise_by_torch, quantise, quantise_by_torch

CODECS = ("int8", "int4", "int8-hadamard", "int4-hadamard")
SHAPES = ((1, 1), (5, 1), (1, 63), (2, 64), (3, 65), (4, 127), (2, 2049), (300, 7), (9, 6401))
MAX = torch.finfo(torch.float32).max
REASON = "it is not built here: `.venv/bin/pip install -v --no-deps -e .` does that, or says why it cannot"
needs_library = pytest.mark.skipif(
    native.LIBRARY is None, reason="quantiser.c is optional, and was not compiled here; CI requires a compiler"
)
"""There is nothing to compare without it: torch alone runs then, which tests/codecs/test_quantization.py holds."""


def as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of float32: equal only if zeros have the same sign."""
    return tensor.view(torch.int32)


def of_any_bits(shape: tuple[int, int], generator: torch.Generator) -> torch.Tensor:
    """Finite float32 of all exponents, denormals included."""
    bits = torch.randint(-(2**31), 2**31, shape, generator=generator).to(torch.int32)
    exponents = bits >> 23 & 0xFF
    return torch.where(exponents == 0xFF, bits & ~(1 << 23), bits).view(torch.float32)


def rows_of_every_kind(shape: tuple[int, int]) -> Iterator[torch.Tensor]:
    """Finite rows: of one magnitude, of magnitudes at both ends, with halves to round, zeros, and of any bits."""
    generator = torch.Generator().manual_seed(shape[0] * shape[1])
    normal = torch.randn(shape, generator=generator)
    yield normal
    for exponent in (-149, -130, -127, -107, -101, -100, -99, -20, 20, 90, 100, 113, 124):
        yield normal * 2.0**exponent
    yield normal * 2.0 ** torch.randint(-120, 120, shape, generator=generator)
    yield (normal * 200).round() / 2
    yield (normal * 2.0**18).round() / 2
    yield torch.where(normal > 1, normal, -0.0)
    yield torch.where(normal > 0, MAX, -MAX)
    yield torch.where(normal > 1, 2.0**-100, -(2.0**-149))
    for _ in range(4):
        yield of_any_bits(shape, generator)


@pytest.mark.skipif(shutil.which("cc") is None, reason="the library is optional without a C compiler; CI requires one")
def test_the_library_is_there_where_a_compiler_is() -> None:
    """Without it everything works, three times as slow, so that nothing else would tell."""
    assert native.LIBRARY is not None, REASON


@needs_library
def test_the_library_runs_wherever_its_folder_is_mounted() -> None:
    """An image may have an older libc than the machine that compiled, and its own libm, which could round otherwise."""
    content = native.LIBRARY_FILE.read_bytes()
    assert max(tuple(map(int, found)) for found in re.findall(rb"GLIBC_(\d+)\.(\d+)", content)) <= (2, 17)
    assert b"libm." not in content


@needs_library
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_finite_rows_have_the_same_codes(codec: str, shape: tuple[int, int]) -> None:
    """Codes, scales and largest magnitudes, in type and shape too; then what they decode to."""
    for rows in rows_of_every_kind(shape):
        expected, found = quantise_by_torch(codec, rows), native.quantise(codec, rows)
        for ours, theirs in zip(found, expected, strict=True):
            assert ours.dtype == theirs.dtype and torch.equal(ours, theirs)
        codes, scales, _ = expected
        decoded = native.dequantise(codec, codes, scales, shape[1])
        assert torch.equal(as_bits(decoded), as_bits(dequantise_by_torch(codec, codes, scales, shape[1])))


@needs_library
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_any_bytes_decode_to_the_same(codec: str, shape: tuple[int, int]) -> None:
    """Codes and scales that no encoder sends: of any bits, negative, denormal, so large that sums overflow."""
    samples, elements = shape
    generator = torch.Generator().manual_seed(samples * elements)
    size = (samples, native.code_bytes(codec, elements))
    for trial in range(24):
        codes = torch.randint(-128, 128, size, generator=generator).to(torch.int8)
        if trial % 4 == 0:
            codes.zero_()
        scales = of_any_bits((samples, -(-elements // 64)), generator)
        if trial % 2:
            scales *= 2.0**-30  # none is large
        if trial in (4, 8):
            scales.fill_(
                -(2.0**100) * (1 if trial == 4 else 1 - 2.0**-8)
            )  # the first that is large, the last that is not
        halves = (as_bits(scales) >> 16).to(torch.int16)
        expected = dequantise_by_torch(codec, codes, halves, elements)
        assert torch.equal(as_bits(native.dequantise(codec, codes, halves, elements)), as_bits(expected))


@needs_library
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("strange", [float("inf"), -float("inf"), float("nan")])
def test_what_is_not_finite_is_told_and_spoils_its_group_only(codec: str, strange: float) -> None:
    """`largest` says infinity or NaN as torch does, wherever the value stands; NaN wins."""
    for place in (0, 63, 64, 200):
        rows = torch.randn(3, 201, generator=torch.Generator().manual_seed(place))
        rows[1, place] = strange
        if place == 200:
            rows[1, 199] = float("nan")
        expected, found = quantise_by_torch(codec, rows), native.quantise(codec, rows)
        assert torch.equal(found[2].nan_to_num(-1), expected[2].nan_to_num(-1))
        assert found[2].isfinite().tolist().count(False) == 1
        spoilt, group_bytes = place // 64, native.code_bytes(codec, 64)
        for ours, theirs, width in zip(found, expected, (group_bytes, 1), strict=False):
            ours[1, spoilt * width :][:width] = theirs[1, spoilt * width :][:width]
            assert torch.equal(ours, theirs)


@needs_library
@pytest.mark.parametrize("codec", CODECS)
def test_views_of_memory_are_read_as_they_are(codec: str) -> None:
    """Columns of a larger tensor, and rows in turned order, give what copies of them give."""
    wide = torch.randn(200, 300, generator=torch.Generator().manual_seed(0))
    for view in (wide[3:90, 5:205], wide.t(), wide.flip(0)[::2], wide[:0]):
        for ours, theirs in zip(quantise(codec, view), quantise(codec, view.clone()), strict=True):
            assert torch.equal(ours, theirs)
        codes, scales, _ = quantise(codec, wide)
        turned = dequantise(codec, codes.flip(0), scales.flip(0), 300)
        assert torch.equal(turned, dequantise(codec, codes, scales, 300).flip(0))


@needs_library
@pytest.mark.parametrize("codec", CODECS)
def test_memory_beyond_codes_and_scales_is_not_read(codec: str) -> None:
    """Sizes that do not fit the elements are an error, before the library is called."""
    codes, scales, _ = native.quantise(codec, torch.randn(3, 200))
    for some in ((codes[:, :-1], scales), (codes, scales[:, :-1]), (codes[:2], scales), (codes, scales[:2])):
        with pytest.raises(ValueError, match=f"codec {codec}: codes .* and scales .* do not fit 200 elements"):
            native.dequantise(codec, *some, 200)
    with pytest.raises(ValueError, match="do not fit"):
        native.dequantise(codec, codes, scales.view(torch.int8)[:, :4], 200)


@pytest.mark.parametrize("codec", CODECS)
def test_messages_are_the_same_without_the_library(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device with it and one without understand each other to the bit."""
    tensor = torch.randn(4, 5, 77, generator=torch.Generator().manual_seed(1))
    sent = encode(codec, tensor)
    received = decode(sent.description, sent.parts)
    monkeypatch.setattr(native, "LIBRARY", None)
    again = encode(codec, tensor)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(sent.parts, again.parts, strict=True))
    assert torch.equal(as_bits(decode(again.description, again.parts)), as_bits(received))


def test_a_library_that_does_not_work_here_is_left_alone(tmp_path: Path) -> None:
    """None at all, one for another machine, or one of other code."""
    other = tmp_path / "quantiser.so"
    other.write_bytes(b"\x7fELF for another machine")
    for path in (tmp_path / "none.so", other, Path(_ctypes.__file__)):
        assert native.load(path) is None
