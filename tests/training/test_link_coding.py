"""Messages in a codec: what a peer describes wrongly is refused by its name."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from fleetune.codecs import ErrorFeedback, decode, encode
from fleetune.contracts.plan import Action, LinkUse, parse_action
from fleetune.errors import Refused
from fleetune.training.exchange import Arrival
from fleetune.training.link_coding import LinkCoder, lane_of_residual
from tests.support.training.runs import plan

ACTION = parse_action("main/0F1")
SENT = encode("top-k", torch.arange(64.0).reshape(2, 32), 4.0)
WHOLE = {f"5|{at}": part for at, part in enumerate(SENT.parts)}
MALFORMED: dict[str, tuple[dict[Any, torch.Tensor], Any]] = {
    "one part of two": ({"5|0": SENT.parts[0]}, {"5": SENT.description}),
    "no tensors": ({}, {"5": SENT.description}),
    "a list of descriptions": (WHOLE, ["5"]),
    "no description": (WHOLE, {"5": None}),
    "a value of another name": (WHOLE, {"x": SENT.description}),
    "more samples": (WHOLE, {"5": SENT.description | {"shape": [3, 32]}}),
    "more kept": (WHOLE, {"5": SENT.description | {"kept": 9}}),
    "another codec": (WHOLE, {"5": SENT.description | {"codec": "int8"}}),
    "another type": (WHOLE, {"5": SENT.description | {"dtype": "str"}}),
}


def coder() -> LinkCoder:
    """The coder of d1, to which d0 sends by top-k."""
    made = plan(("a", "b"), [1], [[8], [8]])
    use = LinkUse(source="d0", target="d1", codec="top-k", ratio=4.0)
    return LinkCoder(replace(made, links=(use,)), "d1", ErrorFeedback())


@pytest.mark.parametrize("fault", MALFORMED)
def test_a_malformed_message_is_refused_by_its_sender(fault: str) -> None:
    """The device that received it is not the one at fault, and a training that is tried again would meet it again."""
    tensors, described = MALFORMED[fault]
    arrival = Arrival(tensors=tensors, sent_s=0.0, arrived_s=0.0, size_bytes=0, described=described)
    with pytest.raises(Refused, match="^d0 sent main/0F1 in a codec that cannot be read"):
        coder().decode(ACTION, "d0", arrival, 2, lambda number: (32,))


def test_what_is_described_well_arrives() -> None:
    """The message that the cases above spoil is read."""
    arrival = Arrival(tensors=dict(WHOLE), sent_s=0.0, arrived_s=0.0, size_bytes=0, described={"5": SENT.description})
    found = coder().decode(ACTION, "d0", arrival, 2, lambda number: (32,)).tensors[5]
    assert found.shape == (2, 32) and int((found != 0).sum()) == 16


def sender(feedback: ErrorFeedback) -> LinkCoder:
    """The coder of d1, which sends gradients to d0 by int4 with error feedback."""
    made = plan(("a", "b"), [1], [[8], [8]])
    use = LinkUse(source="d1", target="d0", codec="int4", feedback=True)
    return LinkCoder(replace(made, links=(use,)), "d1", feedback)


def sent(coder: LinkCoder, gradient: torch.Tensor, scale: float) -> torch.Tensor:
    """Send a gradient of float16 in a round of its own; return what arrives, without the scale."""
    coder.start_round(scale)
    coded = coder.encode(parse_action("main/1B0"), "d0", {5: (gradient * scale).half()}, lambda number: (64,))
    parts = [tensor for name, tensor in coded.tensors.items() if str(name).startswith("5|")]
    return decode(coded.described["5"], parts).float() / scale


def test_what_gradients_lose_is_kept_without_the_scale_of_the_loss() -> None:
    """The scale is halved after a round; what arrives then is what would have without any scale, in every bit."""
    gradient = torch.linspace(-0.0125, 0.0175, 128).half().float().reshape(2, 64)
    found = []
    for scales in ((1.0, 1.0, 1.0), (1024.0, 512.0, 2048.0)):
        feedback = ErrorFeedback()
        coder = sender(feedback)
        for scale in scales:
            last = sent(coder, gradient, scale)
            feedback.commit()
        found.append((last, *feedback.state().values()))
    assert all(torch.equal(plain, scaled) for plain, scaled in zip(*found, strict=True))
    assert not torch.equal(found[0][0], sent(sender(ErrorFeedback()), gradient, 1.0)), "residuals change what is sent"


def test_a_gradient_that_has_overflowed_arrives_so_and_changes_no_residual() -> None:
    """Every device before the cut has to see it; a lane that takes no step has lost nothing in that round."""
    feedback = ErrorFeedback()
    coder = sender(feedback)
    gradient = torch.linspace(-1.0, 1.0, 128).reshape(2, 64)
    sent(coder, gradient, 1.0)
    feedback.commit()
    before = feedback.state()
    assert not sent(coder, gradient, 2.0**17).isfinite().all()
    feedback.commit(lambda key: lane_of_residual(key) == "main")
    after = feedback.state()
    assert before and before.keys() == after.keys() and all(before[key] is after[key] for key in before)


@pytest.mark.parametrize(("back", "kept"), [("forward-mask", True), ("top-k", False), (None, False)])
def test_what_a_forward_kept_is_held_until_its_gradient_has_crossed_and_only_where_it_is_needed(
    back: str | None, kept: bool
) -> None:
    """Bug: both ends held the places of every micro-batch of a round, also where gradients have indices of their own:
    as much as the messages themselves at small ratios."""
    uses = [LinkUse(source="d0", target="d1", codec="top-k", ratio=4.0)]
    uses += [LinkUse(source="d1", target="d0", codec=back, ratio=4.0)] if back else []
    made = replace(plan(("a", "b"), [1], [[8], [8]]), links=tuple(uses))
    low, high = (LinkCoder(made, name, ErrorFeedback()) for name in ("d0", "d1"))
    there, back_again = parse_action("main/0F1"), parse_action("main/1B1")
    _cross(("d0", low), ("d1", high), there)
    # private: it is about memory, which is freed without any other effect
    assert [bool(each._kept) for each in (low, high)] == [kept, kept]
    _cross(("d1", high), ("d0", low), back_again)
    # private: see above
    assert not low._kept and not high._kept


def _cross(source: tuple[str, LinkCoder], target: tuple[str, LinkCoder], action: Action) -> None:
    """Send value 5 from one end of the cut to the other, each given by its device and coder."""
    (sender, sending), (receiver, receiving) = source, target
    coded = sending.encode(action, receiver, {5: torch.arange(64.0).reshape(2, 32)}, lambda number: (32,))
    arrival = Arrival(
        tensors=dict(coded.tensors), sent_s=0.0, arrived_s=0.0, size_bytes=0, described=dict(coded.described)
    )
    assert receiving.decode(action, sender, arrival, 2, lambda number: (32,)).tensors[5].shape == (2, 32)


def test_small_losses_add_up_in_bfloat16() -> None:
    """Of two elements top-k sends the first, 4; the second, 0.01, waits until its losses exceed it, after 400 rounds.
    Bug: kept in bfloat16 they stopped at 2, where half a step of its numbers is more than 0.004."""
    use = LinkUse(source="d1", target="d0", codec="top-k", ratio=2.0, feedback=True)
    feedback = ErrorFeedback()
    coder = LinkCoder(replace(plan(("a", "b"), [1], [[8], [8]]), links=(use,)), "d1", feedback)
    for _ in range(300):
        coder.start_round()
        value = torch.tensor([[4.0, 0.01]]).bfloat16().repeat(1, 32)
        coder.encode(parse_action("main/1B0"), "d0", {5: value}, lambda number: (64,))
        feedback.commit()
    (lost,) = feedback.state().values()
    assert lost.dtype == torch.float32
    assert float(lost[0, 1]) == pytest.approx(300 * float(torch.tensor(0.01).bfloat16()), rel=1e-3)


@pytest.mark.parametrize("error", [torch.AcceleratorError("an error of the bus"), torch.OutOfMemoryError("full")])
def test_an_error_of_the_own_gpu_is_no_fault_of_the_sender(
    error: RuntimeError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: a GPU that failed while it decoded ended the training with the words that its peer had sent nonsense."""

    def fails(*given: Any) -> torch.Tensor:
        raise error

    # replaced: an error of a GPU, of which there is none, in the midst of decoding
    monkeypatch.setattr("fleetune.training.link_coding.decode", fails)
    arrival = Arrival(tensors=dict(WHOLE), sent_s=0.0, arrived_s=0.0, size_bytes=0, described={"5": SENT.description})
    with pytest.raises(type(error)):
        coder().decode(ACTION, "d0", arrival, 2, lambda number: (32,))
