"""fp16 and bf16: half precision over the whole range of float32."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetune.codecs import decode, encode


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
