"""fp16 and bf16: half precision over the whole range of float32; int8 and int4: codes, scales, bounds of the error."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetune.codecs import Encoded, decode, encode


def through(codec: str, tensor: torch.Tensor) -> torch.Tensor:
    """Encode and decode."""
    sent = encode(codec, tensor)
    assert sent.description["codec"] == codec
    return decode(sent.description, sent.parts)


def test_what_a_sample_looks_like_on_the_wire() -> None:
    """The largest magnitude, 6, is brought into [2^14, 2^15): 12 is added to every exponent."""
    halves, exponents = encode("fp16", torch.tensor([[1.0, -6.0, 0.5, 0.0], [0.0, 0.0, 0.0, 0.0]])).parts
    assert halves[0].tolist() == [4096.0, -24576.0, 2048.0, 0.0] and not halves[1].any()
    assert exponents.tolist() == [-12, -15] and exponents.dtype == torch.int16


@settings(deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=4, max_size=40))
def test_errors_are_bounded(values: list[float]) -> None:
    """fp16: 2^-11 of the element, or 2^-39 of the sample's largest where that is more; bf16: 2^-8 of the element."""
    tensor = torch.tensor([values])
    wide, largest = tensor.double(), tensor.double().abs().max()
    error = (through("fp16", tensor).double() - wide).abs()
    assert (error <= torch.maximum(wide.abs() * 2.0**-11, largest * 2.0**-39).clamp_min(2.0**-149)).all()
    error = (through("bf16", tensor).double() - wide).abs()
    assert (error <= (wide.abs() * 2.0**-8).clamp_min(2.0**-134)).all()


@pytest.mark.parametrize("factor", [1e-30, 1e-8, 1.0, 1e30])
def test_the_size_of_a_tensor_does_not_matter(factor: float) -> None:
    """Small gradients do not vanish and large activations do not overflow, as they would in plain float16."""
    tensor = torch.randn(3, 5000, generator=torch.Generator().manual_seed(0)) * factor
    error = (through("fp16", tensor).double() - tensor.double()).norm() / tensor.double().norm()
    assert error < 3e-4


def test_samples_have_their_own_exponent() -> None:
    """A sample a billion times larger takes nothing from a small one."""
    tensor = torch.tensor([[1.0, 3.0, 5.0], [1e9, 3e9, 5e9]])
    assert torch.equal(through("fp16", tensor)[0], tensor[0])


PLAIN = {"int8": 127, "int4": 7}
ROTATED = {"int8-hadamard": 127, "int4-hadamard": 7}


def sent_and_found(codec: str, tensor: torch.Tensor) -> tuple[Encoded, torch.Tensor]:
    """The message, and what it decodes to."""
    sent = encode(codec, tensor)
    assert sent.description["codec"] == codec
    return sent, decode(sent.description, sent.parts)


def scales_of(sent: Encoded) -> torch.Tensor:
    """[samples, groups] scales as double."""
    return sent.parts[1].view(torch.bfloat16).double()


def test_codes_of_int8_by_hand() -> None:
    """The largest magnitude, 127, makes the scale 1; halves are rounded to even."""
    tensor = torch.zeros(1, 64)
    tensor[0, :6] = torch.tensor([127.0, -127.0, 0.4, 2.5, -3.5, 64.0])
    sent, found = sent_and_found("int8", tensor)
    assert sent.parts[0][0, :6].tolist() == [127, -127, 0, 2, -4, 64]
    assert scales_of(sent).tolist() == [[1.0]]
    assert found[0, :6].tolist() == [127.0, -127.0, 0.0, 2.0, -4.0, 64.0]


def test_codes_of_int4_by_hand() -> None:
    """Two codes in a byte, the first in the low half; seven elements leave the last half empty."""
    sent, found = sent_and_found("int4", torch.tensor([[7.0, -7.0, 1.0, -1.0, 0.0, 3.4, -2.0]]))
    assert [f"{byte:02x}" for byte in sent.parts[0][0].tolist()] == ["97", "f1", "30", "0e"]
    assert found.tolist() == [[7.0, -7.0, 1.0, -1.0, 0.0, 3.0, -2.0]]


def test_an_outlier_spoils_its_own_group_only() -> None:
    """A group of 64 has a scale of its own: elements 64 and on are as exact as without the outlier."""
    tensor = torch.randn(1, 200, generator=torch.Generator().manual_seed(0))
    _, before = sent_and_found("int8", tensor)
    tensor[0, 5] = 1e4
    _, after = sent_and_found("int8", tensor)
    assert torch.equal(before[0, 64:], after[0, 64:]) and not torch.equal(before[0, :64], after[0, :64])


@settings(deadline=None, max_examples=200)
@given(
    st.sampled_from(sorted(PLAIN)),
    st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=5, max_size=150),
    st.sampled_from([1.0, 1e-20, 1e-28]),
)
def test_no_element_is_off_by_more_than_half_a_scale(codec: str, values: list[float], factor: float) -> None:
    """Nor by more than 2^-100 in groups that small; a scale is at most a 2^-7th larger than it needs to be."""
    tensor = torch.tensor([values]) * factor
    sent, found = sent_and_found(codec, tensor)
    scale = scales_of(sent).repeat_interleave(64, 1)[:, : len(values)]
    bound = torch.maximum(scale / 2 * (1 + 1e-5), torch.full_like(scale, 2.0**-100))
    assert ((found.double() - tensor.double()).abs() <= bound).all()
    largest = torch.stack([group.abs().max() for group in tensor[0].double().split(64)])
    assert (scales_of(sent)[0] <= largest / PLAIN[codec] * (1 + 2.0**-7) + 1e-300).all()


@settings(deadline=None, max_examples=100)
@given(
    st.sampled_from(sorted(ROTATED)),
    st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=64, max_size=200),
)
def test_a_rotated_element_is_off_by_32_scales_at_most(codec: str, values: list[float]) -> None:
    """64 rounding errors of half a scale and signs at worst, and a 2^-17th of the group's largest for the grid."""
    tensor = torch.tensor([values])
    sent, found = sent_and_found(codec, tensor)
    largest = torch.stack([group.abs().max() for group in tensor[0].double().split(64)])[None]
    bound = (scales_of(sent) * 32 + largest * 2.0**-17).clamp_min(2.0**-100).repeat_interleave(64, 1)
    assert ((found.double() - tensor.double()).abs() <= bound[:, : len(values)] * (1 + 1e-5)).all()


@pytest.mark.parametrize("codec", ROTATED)
def test_a_rotation_spreads_an_outlier(codec: str) -> None:
    """A group of one large element is a row of the matrix: all codes are as large as they get, and come back exact."""
    tensor = torch.zeros(1, 64)
    tensor[0, 9] = -254.0
    sent, found = sent_and_found(codec, tensor)
    codes = sent.parts[0] if codec == "int8-hadamard" else sent.parts[0].to(torch.int8) << 4 >> 4
    assert set(codes.abs().view(-1).tolist()) == {ROTATED[codec]}
    assert torch.allclose(found, tensor, rtol=2**-7, atol=0)


def test_a_rotation_halves_the_error_of_activations_with_outliers() -> None:
    """One element in 64 is twenty times as large: int4 loses half as much after rotating, and Gaussian data nothing."""
    plain = torch.randn(64, 640, generator=torch.Generator().manual_seed(0))
    spiky = plain.clone()
    spiky[:, ::64] *= 20
    errors = {
        (codec, name): float((sent_and_found(codec, given)[1] - given).norm() / given.norm())
        for codec in ("int4", "int4-hadamard")
        for name, given in (("plain", plain), ("spiky", spiky))
    }
    assert errors["int4-hadamard", "spiky"] < 0.55 * errors["int4", "spiky"]
    assert errors["int4-hadamard", "plain"] == pytest.approx(errors["int4", "plain"], rel=0.03)


@pytest.mark.parametrize("codec", ROTATED)
def test_rotations_are_exact_sums(codec: str) -> None:
    """The same codes as with sums in double precision: no library's order of additions shows."""
    tensor = torch.randn(9, 64 * 5, generator=torch.Generator().manual_seed(2)) * 1e5
    sent, found = sent_and_found(codec, tensor)
    groups = tensor.view(-1, 64).double()
    step = 2.0 ** (torch.frexp(groups.abs().amax(1, keepdim=True))[1] - 17).double()
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < 64:
        matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64), matrix)
    rotated = (groups / step).round() @ matrix
    scale = scales_of(sent).view(-1, 1) * 64 / step
    codes = (rotated.float() * (1 / scale.float())).round().double()
    assert codes.abs().max() == ROTATED[codec]
    assert torch.equal(found.view(-1, 64), (codes @ matrix).float() * scales_of(sent).view(-1, 1).float())


@pytest.mark.parametrize("codec", ["int8-hadamard", "int4-hadamard"])
def test_units_before_and_after_the_rotation_back_give_the_same_bits(codec: str) -> None:
    """Tensors of ordinary size decode with the unit first, huge ones with the unit last; a power of two apart, both
    are the same numbers, and none is NaN where a sum of huge ones overflows."""
    tensor = torch.randn(5, 64 * 3, generator=torch.Generator().manual_seed(4))
    _, ordinary = sent_and_found(codec, tensor)
    _, huge = sent_and_found(codec, tensor * 2.0**115)
    assert torch.equal(ordinary * 2.0**115, huge)
    _, largest = sent_and_found(codec, torch.full((1, 64), torch.finfo(torch.float32).max))
    assert largest.isfinite().all()
