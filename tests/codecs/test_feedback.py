"""Error feedback: nothing is lost for good, memory is bounded."""

import torch

from fleetune.codecs import ErrorFeedback, decode, encode
from fleetune.contracts.link_codecs import TOP_K


def send(feedback: ErrorFeedback, key: str, tensor: torch.Tensor) -> torch.Tensor:
    """Send a tensor with feedback; what arrives."""
    sent = feedback.add(key, tensor)
    message = encode(TOP_K, sent, 4.0)
    found = decode(message.description, message.parts)
    feedback.keep(key, sent - found)
    return found


def test_what_is_left_out_arrives_later() -> None:
    """Of four elements one is sent: the second largest follows, with what it has gathered meanwhile."""
    feedback = ErrorFeedback(1000)
    gradient = torch.tensor([[4.0, 3.0, 1.0, 0.5]])
    assert send(feedback, "a>b", gradient).tolist() == [[4.0, 0.0, 0.0, 0.0]]
    assert send(feedback, "a>b", gradient).tolist() == [[0.0, 6.0, 0.0, 0.0]]
    assert send(feedback, "a>b", gradient).tolist() == [[8.0, 0.0, 0.0, 0.0]]


def test_the_sum_of_messages_follows_the_sum_of_tensors() -> None:
    """All that is ever missing is the last residual; without feedback many elements would never arrive."""
    feedback = ErrorFeedback(10**6)
    generator = torch.Generator().manual_seed(0)
    whole, arrived = torch.zeros(2, 40), torch.zeros(2, 40)
    steady = 0.3 + 0.7 * torch.rand(2, 40, generator=generator)
    forgetful = torch.zeros(2, 40)
    for _ in range(50):
        tensor = steady + 0.1 * torch.randn(2, 40, generator=generator)
        whole += tensor
        arrived += send(feedback, "k", tensor)
        forgetful += send(ErrorFeedback(0), "k", tensor)
    residual = feedback.add("k", torch.zeros(2, 40))
    assert torch.allclose(whole, arrived + residual, atol=1e-3)
    assert (arrived > 0).all() and (forgetful == 0).float().mean() > 0.3


def test_memory_is_bounded_and_the_longest_unused_goes_first() -> None:
    """Three residuals of 40 bytes in 100 bytes: the one that was used last but two is forgotten."""
    feedback = ErrorFeedback(100)
    ones = torch.ones(10)
    feedback.keep("a", ones)
    feedback.keep("b", ones)
    feedback.add("a", ones)
    feedback.keep("c", ones)
    assert feedback.size_bytes == 80 and len(feedback) == 2
    assert [float(feedback.add(key, ones)[0]) for key in "abc"] == [2.0, 1.0, 2.0]
    feedback.keep("a", torch.ones(1000))  # larger than all memory
    assert feedback.size_bytes == 40 and float(feedback.add("a", torch.ones(1000))[0]) == 1.0


def test_what_does_not_fit_or_is_not_finite_is_not_added() -> None:
    """A residual of another shape belongs to another plan; one with NaN would poison every later message."""
    feedback = ErrorFeedback(10**6)
    feedback.keep("k", torch.ones(2, 3))
    assert torch.equal(feedback.add("k", torch.zeros(3, 2)), torch.zeros(3, 2))
    feedback.keep("k", torch.tensor([float("nan"), 1.0]))
    assert len(feedback) == 0 and feedback.size_bytes == 0


def test_a_residual_is_a_copy() -> None:
    """The caller may go on to use its memory, and the type of the next tensor decides that of the sum."""
    feedback = ErrorFeedback(10**6)
    error = torch.ones(3)
    feedback.keep("k", error)
    error.zero_()
    assert torch.equal(feedback.add("k", torch.zeros(3, dtype=torch.float64)), torch.ones(3, dtype=torch.float64))
