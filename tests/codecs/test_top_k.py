"""top-k and the gradients at its mask."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetune.codecs import decode, encode, kept_indices
from fleetune.codecs.top_k import pack_indices, unpack_indices
from fleetune.contracts.link_codecs import FORWARD_MASK, TOP_K
from fleetune.errors import Refused


def test_a_message_by_hand() -> None:
    """Of ten elements the two largest are kept, at 3 and 8: two bfloat16; low bits 1 and 0; high parts 1 and 4, which
    set bits 1 + 0 and 4 + 1 of six. Of 64, indices 9 and 40 take six bits each; of eight, half are a bitmap."""
    tensor = torch.tensor([[0.0, 1.0, -1.0, -8.0, 2.0, 0.5, 0.0, 3.0, 4.0, -3.5]])
    values, indices = encode(TOP_K, tensor, 5.0).parts
    assert values.dtype == torch.bfloat16 and values.tolist() == [[-8.0, 4.0]]
    assert indices.tolist() == [[0b100010_01]]
    wide = torch.zeros(1, 64)
    wide[0, 9], wide[0, 40] = 1.0, 2.0
    assert encode(TOP_K, wide, 32.0).parts[1].tolist() == [[0b00_001001, 0b1010]]
    half = torch.tensor([[1.0, 9.0, 1.0, 9.0, 9.0, 1.0, 1.0, -9.0]])
    assert encode(TOP_K, half, 2.0).parts[1].tolist() == [[0b10011010]]


@settings(deadline=None)
@given(st.integers(1, 400), st.integers(1, 400), st.integers(1, 3), st.randoms(use_true_random=False))
def test_indices_come_back(elements: int, kept: int, samples: int, random: "np.random.Generator") -> None:
    """Any ascending indices, few or all, are the same after packing."""
    kept = min(kept, elements)
    indices = np.array([sorted(random.sample(range(elements), kept)) for _ in range(samples)])  # type: ignore[attr-defined]
    assert np.array_equal(unpack_indices(pack_indices(indices, elements), elements, kept), indices)


@pytest.mark.parametrize("elements", [2, 50, 1000, 17_000, 40_000])
@pytest.mark.parametrize("ratio", [1.3, 2.0, 10.0, 1000.0])
@pytest.mark.parametrize("kind", ["normal", "ties", "sorted", "spikes", "waves"])
def test_the_largest_are_kept(elements: int, ratio: float, kind: str) -> None:
    """No element left out is larger than a kept one, of equal ones the first are kept, and those are as sent."""
    numbers = torch.randn(2, elements, generator=torch.Generator().manual_seed(0))
    tensor = {
        "normal": numbers,
        "ties": numbers.round(),
        "sorted": numbers.abs().sort(descending=True)[0],
        "spikes": torch.where(torch.arange(elements) % 1000 == 1, numbers * 1e3, 0.0),
        "waves": torch.sin(torch.arange(elements) * 0.7).expand(2, -1),
    }[kind].to(torch.bfloat16).float()  # fmt: skip
    sent = encode(TOP_K, tensor, ratio)
    if sent.description["codec"] == "dense":
        return
    kept = kept_indices(sent.description, sent.parts)
    assert kept is not None and sent.kept is not None and torch.equal(kept, sent.kept)
    assert kept.shape[1] == sent.description["kept"] == min(elements, -(-elements // ratio))
    by_size = tensor.abs().sort(dim=1, descending=True, stable=True)[1][:, : kept.shape[1]].sort()[0]
    assert torch.equal(kept, by_size)
    assert torch.equal(
        decode(sent.description, sent.parts), torch.zeros_like(tensor).scatter(1, kept, tensor.gather(1, kept))
    )


def test_gradients_at_the_mask_have_no_indices() -> None:
    """Both ends hold the forward's mask: the receiver from the message, the sender from encoding it."""
    forward = torch.randn(3, 100, generator=torch.Generator().manual_seed(0))
    gradient = torch.randn(3, 100, generator=torch.Generator().manual_seed(1))
    sent = encode(TOP_K, forward, 10.0)
    received = kept_indices(sent.description, sent.parts)
    back = encode(FORWARD_MASK, gradient, 10.0, received)
    assert back.size_bytes == 3 * 10 * 2 and len(back.parts) == 1
    found = decode(back.description, back.parts, kept=sent.kept)
    arrived = decode(sent.description, sent.parts)
    assert torch.equal(found != 0, arrived != 0)
    assert torch.equal(found, torch.where(arrived != 0, gradient, 0.0).to(torch.bfloat16).float())


def test_a_mask_of_other_samples_is_refused() -> None:
    """A gradient of fewer samples than the forward had is a mistake of the caller; so is decoding without a mask."""
    sent = encode(TOP_K, torch.randn(3, 100), 10.0)
    with pytest.raises(Refused, match="codec forward-mask: the forward had 3 samples, the gradient has 2"):
        encode(FORWARD_MASK, torch.randn(2, 100), 10.0, sent.kept)
    back = encode(FORWARD_MASK, torch.randn(3, 100), 10.0, sent.kept)
    with pytest.raises(ValueError, match="codec forward-mask needs the indices that the forward kept"):
        decode(back.description, back.parts)


def test_without_a_mask_gradients_are_dense() -> None:
    """Where the forward kept everything, it made no mask."""
    sent = encode(TOP_K, torch.randn(3, 100), 1.0)
    assert sent.kept is None and kept_indices(sent.description, sent.parts) is None
    gradient = torch.randn(3, 100)
    back = encode(FORWARD_MASK, gradient, 1.0, sent.kept)
    assert torch.equal(decode(back.description, back.parts), gradient)
