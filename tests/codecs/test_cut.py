"""A cut in one process equals what two ends of a link do."""

import pytest
import torch

from fleetune.codecs import decode, encode, kept_indices
from fleetune.contracts.link_codecs import CODECS, FORWARD_MASK, SPARSE
from fleetune.contracts.plan import LinkUse
from tests.support.codecs.single_process import across_cut


def use(codec: str) -> LinkUse:
    """A link with a codec."""
    return LinkUse(source="a", target="b", codec=codec, ratio=5.0 if codec in SPARSE else 1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("back", CODECS)
@pytest.mark.parametrize("forward", CODECS)
def test_one_process_computes_what_two_do(forward: str, back: str, dtype: torch.dtype) -> None:
    """Loss and gradients are bit by bit those of two halves of a model with messages between them."""
    generator = torch.Generator().manual_seed(0)
    low = torch.nn.Linear(6, 90, dtype=dtype)
    high = torch.nn.Linear(90, 3, dtype=dtype)
    given = torch.randn(4, 6, generator=generator, dtype=dtype)

    high(across_cut(low(given).tanh(), use(forward), use(back))).square().sum().backward()
    alone = [parameter.grad.clone() for part in (low, high) for parameter in part.parameters()]
    low.zero_grad(), high.zero_grad()

    made = low(given).tanh()
    sent = encode(use(forward).codec_of("F"), made, 5.0)
    mask = kept_indices(sent.description, sent.parts)
    arrived = decode(sent.description, sent.parts, kept=mask).clone().requires_grad_()
    high(arrived).square().sum().backward()
    assert arrived.grad is not None
    returned = encode(use(back).codec_of("B"), arrived.grad, 5.0, mask)
    known = sent.kept if returned.description["codec"] == FORWARD_MASK else None
    made.backward(decode(returned.description, returned.parts, kept=known))
    found = [parameter.grad for part in (low, high) for parameter in part.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(alone, found, strict=True))


def test_dense_cuts_change_nothing() -> None:
    """A model with a dense cut is the model."""
    given = torch.randn(3, 7, requires_grad=True)
    across_cut(given, use("dense"), use("dense")).square().sum().backward()
    assert torch.equal(given.grad, 2 * given.detach())


def test_the_gradient_of_top_k_is_that_at_its_mask() -> None:
    """With the forward's mask, straight-through is the true gradient of leaving elements out."""
    given = torch.tensor([[3.0, 0.5, -2.0, 1.0, 0.25]], requires_grad=True)
    across_cut(given, LinkUse(source="a", target="b", codec="top-k", ratio=2.5),
               LinkUse(source="b", target="a", codec="forward-mask", ratio=2.5)).square().sum().backward()  # fmt: skip
    assert given.grad.tolist() == [[6.0, 0.0, -4.0, 0.0, 0.0]]
