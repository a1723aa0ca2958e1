"""A worker's connections, where another worker ends and the next one listens at the same address, as containers do."""

import torch

from fleetune.links.endpoint import Endpoint, Listen
from fleetune.links.message import Message
from fleetune.training.exchange import Exchange
from fleetune.training.liveness import Heartbeat
from fleetune.training.worker_links import Peer, WorkerLinks
from tests.support.links.ends import KEYS, LISTED, PATIENCE_S


def test_the_next_worker_at_an_address_has_lost_nothing() -> None:
    """Ann has sent bob three messages when he ends. The next bob at his address gets what is sent to him, and is told
    of no loss: those three were not for him."""
    with Endpoint("ann", KEYS["ann"], LISTED, run="r", note=lambda _: None) as ann:
        exchange = Exchange(ann, "coordinator", torch.device("cpu"))
        with Endpoint("bob", KEYS["bob"], LISTED, run="r", note=lambda _: None) as first:
            address = first.address
            beat = Heartbeat(exchange, ann, "coordinator", abandoned=lambda why: None)
            links = WorkerLinks(exchange, ann, beat, {"bob": Peer(address, KEYS["bob"].public)})
            links.connect(["bob"])
            for number in range(3):
                ann.send("bob", Message("values", {"number": number}))
                assert first.receive(PATIENCE_S) is not None
        links.follow({}, gone=["bob"])
        assert ann.down_s == {}, "nobody waits for him"
        listen = Listen(bind=address)
        with Endpoint("bob", KEYS["bob"], LISTED, run="r", listen=listen, note=lambda _: None) as second:
            links.follow({"bob": address}, gone=())
            links.connect(["bob"])
            ann.send("bob", Message("values", {"number": 3}))
            received = second.receive(PATIENCE_S)
            assert received is not None and received.message.header == {"number": 3}
            assert second.lost_from == {}
