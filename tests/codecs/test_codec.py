"""Every codec: exact bytes, samples on their own, what travels dense, and descriptions that lie."""

import json
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetune.codecs import Encoded, decode, encode, kept_indices, part_bytes
from fleetune.contracts.link_codecs import CODECS, FORWARD_MASK, SPARSE, TOP_K, wire_bytes
from fleetune.errors import Refused

LOSSY = tuple(codec for codec in CODECS if codec != "dense")
QUANTISERS = ("int8", "int4", "int8-hadamard", "int4-hadamard")
SHAPES = ((3, 2, 64), (5, 130), (2, 1), (1, 3), (7,), (4, 63), (1, 40_000), (2, 3, 5, 7), (300, 65))


def drawn(shape: tuple[int, ...], seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Normal numbers with a few outliers."""
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    numbers.view(-1)[::97] *= 30
    return numbers.to(dtype)


def coded(codec: str, tensor: torch.Tensor, ratio: float = 7.0) -> Encoded:
    """The tensor in a codec; a gradient has the mask of a forward that differs from it."""
    forward = drawn(tuple(tensor.shape), seed=1).to(tensor.dtype)
    kept = encode(TOP_K, forward, ratio).kept if codec == FORWARD_MASK else None
    return encode(codec, tensor, ratio if codec in SPARSE else 1.0, kept)


def through(sent: Encoded, **changes: Any) -> torch.Tensor:
    """What the other end makes of it: the description crosses as JSON, the parts as bytes."""
    described = json.loads(json.dumps({**sent.description, **changes}))
    parts = [part.view(-1).view(torch.uint8).clone() for part in sent.parts]
    return decode(described, parts, kept=sent.kept if described["codec"] == TOP_K else None)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bytes_are_those_stated_beforehand(codec: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Shape, type and bytes: what `wire_bytes` says, split as `part_bytes` says, never more than dense."""
    tensor = drawn(shape, dtype=dtype)
    sent = coded(codec, tensor)
    elements, ratio = tensor[0].numel(), 7.0 if codec in SPARSE else 1.0
    stated = wire_bytes(elements * dtype.itemsize, shape[0], codec, ratio, dtype.itemsize)
    assert sent.size_bytes == stated == sum(part_bytes(sent.description)) <= tensor.numel() * dtype.itemsize
    assert all(part.is_contiguous() and part.device.type == "cpu" for part in sent.parts)
    mask = coded(TOP_K, drawn(shape, seed=1, dtype=dtype)).kept if codec == FORWARD_MASK else None
    found = decode(json.loads(json.dumps(sent.description)), sent.parts, kept=mask)
    assert found.shape == tensor.shape and found.dtype == dtype and found.is_contiguous()


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(LOSSY),
    st.integers(1, 6),
    st.sampled_from([1, 2, 3, 63, 64, 65, 127, 128, 500, 20_000]),
    st.sampled_from([1.0, 1.5, 2.0, 3.0, 5.0, 30.0, 1e4]),
    st.integers(0, 99),
)
def test_a_sample_does_not_depend_on_the_others(
    codec: str, samples: int, elements: int, ratio: float, seed: int
) -> None:
    """Whatever other samples travel with it, in whatever order: a sample decodes to the same bits."""
    tensor = drawn((samples, elements), seed)
    tensor[0] *= 1e6
    whole = coded(codec, tensor, ratio)
    forward = drawn((samples, elements), seed=1)
    found = decode(whole.description, whole.parts, kept=_mask(codec, forward, ratio))
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(seed))
    for rows in (order, order[:1], order[samples // 2 :]):
        mask = _mask(codec, forward[rows], ratio)
        part = encode(codec, tensor[rows], ratio if codec in SPARSE else 1.0, mask)
        assert torch.equal(decode(part.description, part.parts, kept=mask), found[rows])


def _mask(codec: str, forward: torch.Tensor, ratio: float) -> torch.Tensor | None:
    return encode(TOP_K, forward, ratio).kept if codec == FORWARD_MASK else None


@pytest.mark.parametrize("codec", CODECS)
def test_tensors_in_any_layout(codec: str) -> None:
    """A transposed, a strided and an expanded tensor are coded as their copies, and stay as they were."""
    wide = drawn((6, 40, 16))
    for tensor in (wide.transpose(0, 1), wide[::2, :, 1::3], drawn((1, 70)).expand(4, 70), wide[1:3, 5:]):
        before = tensor.clone()
        views, copies = coded(codec, tensor), coded(codec, tensor.contiguous())
        assert all(torch.equal(a.view(-1).view(torch.uint8), b.view(-1).view(torch.uint8))
                   for a, b in zip(views.parts, copies.parts, strict=True))  # fmt: skip
        assert torch.equal(tensor, before)


@pytest.mark.parametrize("codec", CODECS)
def test_what_travels_dense_in_every_codec(codec: str) -> None:
    """Integers, booleans, complex numbers, empty tensors, and single numbers come back bit by bit."""
    for tensor in (
        torch.arange(1000).view(10, 100),
        torch.arange(256).to(torch.uint8).view(2, 128),
        drawn((4, 99)) > 0,
        torch.empty(0, 7),
        torch.empty(3, 0),
        torch.tensor(3.25),
        torch.tensor(7),
        torch.tensor([[1 + 2j], [-0.5j]]),
    ):
        sent = encode(codec, tensor, 7.0)
        found = through(sent)
        assert sent.description["codec"] == "dense"
        assert found.dtype == tensor.dtype and torch.equal(found, tensor)


@pytest.mark.parametrize("codec", CODECS)
def test_zeros_stay_zeros(codec: str) -> None:
    """Zeros, and zeros among others, decode to zeros."""
    tensor = torch.zeros(2, 200)
    assert not decode(
        coded(codec, tensor).description, coded(codec, tensor).parts, kept=_mask(codec, drawn((2, 200), 1), 7.0)
    ).any()
    tensor[1] = 3.0
    if codec not in SPARSE:
        found = through(coded(codec, tensor))
        assert not found[0].any() and torch.allclose(found[1], tensor[1], rtol=2**-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("codec", ["dense", *[c for c in LOSSY if c != FORWARD_MASK]])
def test_huge_and_tiny_values_stay_finite(codec: str, dtype: torch.dtype) -> None:
    """Up to float32's largest and down to its denormals, nothing becomes infinite or NaN, nor changes its sign."""
    most = torch.finfo(torch.float32).max
    tensor = drawn((4, 128), dtype=dtype)
    tensor[0] *= most / tensor[0].abs().max()
    tensor[1] *= 1e-42 / tensor[1].abs().max()
    tensor[2, :3] = torch.tensor([most, -most, 1e-38], dtype=dtype)
    tensor[3] = -most
    found = through(coded(codec, tensor))
    assert found.isfinite().all()
    if codec not in SPARSE and "hadamard" not in codec:
        assert (found.double() * tensor.double() >= 0).all()
    bound = {"fp16": 2.0**-10, "bf16": 2.0**-7, "int8": 0.01, "int8-hadamard": 0.04}.get(codec, 1.0)
    assert ((found[0] - tensor[0]).abs().max() / most) <= bound


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("place", [0, 70, 129])
def test_values_that_are_not_finite(bad: float, place: int) -> None:
    """Halves keep them and what stands beside them; other lossy codecs refuse, and name themselves."""
    tensor = drawn((3, 130))
    tensor[1, place] = bad
    for codec in ("dense", "fp16", "bf16"):
        found = through(coded(codec, tensor))
        assert torch.equal(found.isfinite(), tensor.isfinite())
        assert torch.equal(found[1, place : place + 1].isnan(), tensor[1, place : place + 1].isnan())
        near = torch.nan_to_num(tensor, 0.0, 0.0, 0.0)
        assert torch.allclose(torch.nan_to_num(found, 0.0, 0.0, 0.0), near, rtol=2**-7)
        if bad == bad:
            assert found[1, place] == bad
    for codec in (*QUANTISERS, TOP_K):
        with pytest.raises(Refused, match=f"codec {codec}: a value is not finite. If training has diverged, choose"):
            coded(codec, tensor)


def test_a_gradient_that_is_not_finite_at_the_mask_is_refused() -> None:
    """Elsewhere it is not sent."""
    forward, gradient = torch.tensor([[3.0, 1.0, 2.0, 0.0]]), torch.ones(1, 4)
    kept = encode(TOP_K, forward, 2.0).kept
    gradient[0, 1] = float("nan")
    assert encode(FORWARD_MASK, gradient, 2.0, kept).parts[0].isfinite().all()
    gradient[0, 2] = float("nan")
    with pytest.raises(Refused, match="codec forward-mask: a value is not finite"):
        encode(FORWARD_MASK, gradient, 2.0, kept)


@pytest.mark.parametrize("codec", [c for c in LOSSY if c != FORWARD_MASK])
def test_float64_beyond_float32_is_refused(codec: str) -> None:
    """It would become infinite."""
    with pytest.raises(Refused, match=f"codec {codec}: a value is beyond float32's range; send the tensor dense"):
        coded(codec, torch.full((2, 100), 1e39, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("codec", LOSSY)
def test_halves_are_coded_where_that_saves(codec: str, dtype: torch.dtype) -> None:
    """A half-precision tensor is dense in fp16 and bf16, and smaller in the others."""
    tensor = drawn((2, 640), dtype=dtype)
    sent = coded(codec, tensor)
    assert (sent.description["codec"] == "dense") == (codec in ("fp16", "bf16"))
    assert sent.size_bytes == wire_bytes(1280, 2, codec, 7.0 if codec in SPARSE else 1.0, 2)


LIES: list[tuple[str, dict[str, Any]]] = [
    ("int8", {"shape": [3, 128]}),
    ("int8", {"shape": [2, -128]}),
    ("int8", {"shape": [2, 128.0]}),
    ("int8", {"shape": [True, 256]}),
    ("int8", {"shape": "2x128"}),
    ("int8", {"shape": [0, 128]}),
    ("int8", {"dtype": "int64"}),
    ("int8", {"dtype": "complex64"}),
    ("int8", {"codec": "zip"}),
    ("int8", {"codec": ["int8"]}),
    ("int8", {"codec": "int4"}),
    ("int8", {"codec": "dense"}),
    ("top-k", {"kept": 129}),
    ("top-k", {"kept": 0}),
    ("top-k", {"kept": "19"}),
    ("top-k", {"kept": 18}),
    ("top-k", {"codec": "forward-mask"}),
    ("fp16", {"codec": "bf16"}),
    ("dense", {"shape": [2, 2**62, 2**62]}),
]


@pytest.mark.parametrize(("codec", "lie"), LIES)
def test_descriptions_that_do_not_fit_are_errors(codec: str, lie: dict[str, Any]) -> None:
    """A sender that lies about its message gets no memory read that is not there."""
    with pytest.raises((ValueError, KeyError, TypeError)):
        through(coded(codec, drawn((2, 128))), **lie)


def test_scales_that_are_not_finite_are_errors() -> None:
    """They would make a whole group infinite."""
    sent = encode("int8", drawn((2, 128)))
    sent.parts[1].view(torch.bfloat16)[0, 0] = float("inf")
    with pytest.raises(ValueError, match="codec int8 has a scale that is not finite"):
        decode(sent.description, sent.parts)


@pytest.mark.parametrize("ratio", [2.0, 3.0, 7.0, 50.0])
def test_random_bytes_are_indices_or_an_error(ratio: float) -> None:
    """Whatever comes as indices, none points outside of its sample."""
    sent = encode(TOP_K, drawn((2, 1000)), ratio)
    generator, refused = torch.Generator().manual_seed(3), 0
    for _ in range(200):
        flipped = sent.parts[1].clone().view(-1)
        place = int(torch.randint(len(flipped), (1,), generator=generator))
        flipped[place] = int(torch.randint(256, (1,), generator=generator))
        try:
            found = kept_indices(sent.description, (sent.parts[0], flipped))
        except ValueError:
            refused += 1
            continue
        assert found is not None and int(found.min()) >= 0 and int(found.max()) < 1000
        assert (found.diff(dim=1) > 0).all()
    assert refused
