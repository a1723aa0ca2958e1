"""Clients that do not belong to the run get nothing and disturb nothing."""

import pytest
import zmq

from fleetune.links.keys import KeyPair, new_key_pair
from fleetune.links.message import Message, header_frame
from tests.links.ends import KEYS, PATIENCE_S, Ends, raw_client, two_ends

STRANGERS = {
    "without keys": (None, KEYS["bob"].public),
    "with a wrong server key": (KEYS["ann"], new_key_pair().public),
    "with a good pair that is not on the list": (KEYS["eve"], KEYS["bob"].public),
}


@pytest.mark.parametrize(("keys", "server_public"), STRANGERS.values(), ids=STRANGERS.keys())
def test_a_stranger_gets_nothing_and_disturbs_nothing(keys: KeyPair | None, server_public: bytes) -> None:
    """While it knocks, listed peers talk on; it is counted, nothing of its own arrives and nothing comes back."""
    with two_ends() as ends, raw_client(ends.bob.address, keys, server_public) as stranger:
        frame = header_frame(Message("evil", {}), [], run="run-1", session="x", sequence=0)
        for _ in range(5):
            stranger.send_multipart([frame])
        for index in range(20):
            exchange(ends, index)
        assert "client turned away" in ends.bob_notes.get(timeout=PATIENCE_S)
        assert ends.bob.refused >= 1
        exchange(ends, 20)
        assert ends.bob.receive(0) is None
        with pytest.raises(zmq.Again):
            stranger.recv(zmq.NOBLOCK)


def exchange(ends: Ends, index: int) -> None:
    """One message each way between the listed peers; nothing else may come between."""
    ends.ann.send("bob", Message("question", {"index": index}))
    question = ends.bob.receive(PATIENCE_S)
    assert question is not None and (question.sender, question.message.header) == ("ann", {"index": index})
    ends.bob.send("ann", Message("answer", {"index": index}))
    answer = ends.ann.receive(PATIENCE_S)
    assert answer is not None and (answer.sender, answer.message.header) == ("bob", {"index": index})
