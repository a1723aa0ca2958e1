"""Error feedback: nothing is lost for good, and only committed rounds change what is to be sent."""

import torch

from fleetune.codecs import ErrorFeedback, decode, encode
from fleetune.contracts.link_codecs import TOP_K


def send(feedback: ErrorFeedback, key: str, tensor: torch.Tensor) -> torch.Tensor:
    """Send a tensor with feedback in a committed round; what arrives."""
    feedback.start_round()
    sent = feedback.add(key, tensor)
    message = encode(TOP_K, sent, 4.0)
    found = decode(message.description, message.parts)
    feedback.keep(key, sent - found)
    feedback.commit()
    return found


def test_what_is_left_out_arrives_later() -> None:
    """Of four elements one is sent: the second largest follows, with what it has gathered meanwhile."""
    feedback = ErrorFeedback()
    gradient = torch.tensor([[4.0, 3.0, 1.0, 0.5]])
    assert send(feedback, "a>b", gradient).tolist() == [[4.0, 0.0, 0.0, 0.0]]
    assert send(feedback, "a>b", gradient).tolist() == [[0.0, 6.0, 0.0, 0.0]]
    assert send(feedback, "a>b", gradient).tolist() == [[8.0, 0.0, 0.0, 0.0]]


def test_the_sum_of_messages_follows_the_sum_of_tensors() -> None:
    """All that is ever missing is the last residual; without feedback many elements would never arrive."""
    feedback = ErrorFeedback()
    generator = torch.Generator().manual_seed(0)
    whole, arrived = torch.zeros(2, 40), torch.zeros(2, 40)
    steady = 0.3 + 0.7 * torch.rand(2, 40, generator=generator)
    forgetful = torch.zeros(2, 40)
    for _ in range(50):
        tensor = steady + 0.1 * torch.randn(2, 40, generator=generator)
        whole += tensor
        arrived += send(feedback, "k", tensor)
        forgetful += send(ErrorFeedback(), "k", tensor)
    residual = feedback.add("k", torch.zeros(2, 40))
    assert torch.allclose(whole, arrived + residual, atol=1e-3)
    assert (arrived > 0).all() and (forgetful == 0).float().mean() > 0.3


def test_a_round_that_is_thrown_away_changes_nothing() -> None:
    """Its errors are of messages that never counted: the round that is run again adds the committed residual."""
    feedback = ErrorFeedback()
    send(feedback, "k", torch.tensor([[1.0, 0.0, 0.0, 4.0]]))
    before = feedback.state()
    for _ in range(2):
        feedback.start_round()
        assert feedback.add("k", torch.zeros(1, 4)).tolist() == [[1.0, 0.0, 0.0, 0.0]]
        feedback.keep("k", torch.full((1, 4), 9.0))
    feedback.start_round()
    assert feedback.state().keys() == before.keys() and torch.equal(feedback.state()["k"], before["k"])


def test_the_state_goes_on_where_another_process_ended() -> None:
    """Loaded residuals are added as if the process had never ended."""
    first, second = ErrorFeedback(), ErrorFeedback()
    send(first, "k", torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
    second.load(first.state())
    again = torch.ones(1, 4)
    assert torch.equal(send(first, "k", again), send(second, "k", again))
    assert torch.equal(first.state()["k"], second.state()["k"])


def test_what_another_plan_lost_is_forgotten() -> None:
    """A device is lost, rounds are committed without it, and it comes back with its plan: what its messages lost long
    ago is neither added nor kept in memory and checkpoints meanwhile.
    """
    feedback = ErrorFeedback()
    send(feedback, "a>b", torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
    send(feedback, "a>c", torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
    assert set(feedback.state()) == {"a>c"}
    assert feedback.add("a>b", torch.zeros(1, 4)).tolist() == [[0.0, 0.0, 0.0, 0.0]]


def test_what_does_not_fit_or_is_not_finite_is_not_added() -> None:
    """A residual of another shape belongs to another plan; one with NaN would poison every later message."""
    feedback = ErrorFeedback()
    feedback.keep("k", torch.ones(2, 3))
    feedback.commit()
    assert torch.equal(feedback.add("k", torch.zeros(3, 2)), torch.zeros(3, 2))
    feedback.keep("k", torch.tensor([float("nan"), 1.0]))
    feedback.commit()
    assert feedback.state() == {}


def test_the_type_of_the_next_tensor_decides_that_of_the_sum() -> None:
    """A residual is kept as it is given, without a copy, which large messages have no memory for."""
    feedback = ErrorFeedback()
    feedback.keep("k", error := torch.ones(3))
    feedback.commit()
    assert feedback.state()["k"].data_ptr() == error.data_ptr()
    assert torch.equal(feedback.add("k", torch.zeros(3, dtype=torch.float64)), torch.ones(3, dtype=torch.float64))
