"""Messages in a codec: what a peer describes wrongly is refused by its name."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from fleetune.codecs import ErrorFeedback, encode
from fleetune.contracts.plan import LinkUse, parse_action
from fleetune.errors import Refused
from fleetune.training.exchange import Arrival
from fleetune.training.link_coding import LinkCoder
from tests.training.runs import plan

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
