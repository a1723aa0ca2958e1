"""Tensors between workers over real links on loopback: sums, order, messages in pieces, and refusals."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from fleetune.contracts import link_frames
from fleetune.contracts.plan import Lane, Plan, Segment, Share
from fleetune.errors import Refused
from fleetune.links.endpoint import Endpoint, Listen
from fleetune.links.message import ALIGNMENT_BYTES, Message
from fleetune.links.peer import MIN_PIECE_BYTES
from fleetune.program import lower
from fleetune.recovery.holdings import Attempt
from fleetune.training.exchange import Aborted, Exchange, Stopped, TransferKey, join_pieces, split_into_pieces
from fleetune.training.gradients import add_terms, ring_all_reduce, shared_gradients
from tests.support.training.endpoints import COORDINATOR, NAMES, PATIENCE_S, connected

Work = Callable[[str, Exchange], Any]


def together(names: Sequence[str], work: Work, listen: Listen | None = None) -> dict[str, Any]:
    """Run the same work on every member at once, each in a thread with its own link; return results by name."""
    with connected(names, listen) as ends, ThreadPoolExecutor(len(names)) as pool:
        exchanges = {name: Exchange(end, COORDINATOR, torch.device("cpu")) for name, end in ends.items()}
        jobs = {name: pool.submit(work, name, exchange) for name, exchange in exchanges.items()}
        try:
            return {name: job.result(PATIENCE_S) for name, job in jobs.items()}
        except BaseException:
            for end in ends.values():
                end.close()
            raise


def values(name: str, size: int, round: int = 0) -> torch.Tensor:
    """Return random numbers that depend on the member and the round."""
    return torch.randn(size, generator=torch.Generator().manual_seed(100 * round + ord(name)))


@pytest.mark.parametrize(("members", "slice_bytes"), [(2, 1 << 20), (3, 1 << 20), (5, 1 << 20), (2, 4096), (3, 40_000)])
def test_a_ring_all_reduce_gives_all_members_the_same_bits(
    members: int, slice_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ring works for many elements, an odd number, fewer than members, one and none, in consecutive rounds, as a
    whole and in slices."""
    monkeypatch.setattr(link_frames, "RING_SLICE_BYTES", slice_bytes)
    group = NAMES[1 : 1 + members]
    sizes = (100_003, 7, members - 1, 1, 0)

    def work(name: str, exchange: Exchange) -> list[torch.Tensor]:
        found = []
        for round, size in enumerate(sizes):
            exchange.start_round(round)
            flat = values(name, size, round)
            ring_all_reduce(exchange, group, TransferKey("ring", round, "main", 4, 0, name), flat)
            found.append(flat)
        return found

    results = together(group, work)
    for round, size in enumerate(sizes):
        total = torch.stack([values(name, size, round).double() for name in group]).sum(0)
        first = results[group[0]][round]
        torch.testing.assert_close(first.double(), total, rtol=1e-5, atol=1e-5)
        assert all(torch.equal(results[name][round], first) for name in group)


def lane(*groups: str) -> Lane:
    """Return a lane with a segment per group of one-letter devices."""
    segments = tuple(
        Segment(
            units=(f"u{n}",),
            shares=tuple(Share(device=d, samples=12 // len(group)) for d in group),
            warmup=1,
        )
        for n, group in enumerate(groups)
    )
    return Lane(name="main", segments=segments)


def sum_shared(
    exchange: Exchange, lane: Lane, device: str, holders: dict[str, tuple[int, ...]], grads: dict[str, torch.Tensor]
) -> None:
    """Do what a device's program says about shared weights; `grads` gets the sums."""
    plan = Plan(strategy="test", micro_batch_samples=12, micro_batches=1, lanes=(lane,))
    tied = {f"u{n}": [name for name, held in holders.items() if n in held] for n in range(len(lane.segments))}
    terms: dict[int, dict[str, torch.Tensor]] = {}
    for step in lower(plan, tied=tied).of(device).round:
        if step.action.letter != "R" or step.kind == "reduce":
            continue
        ends = step.action.segment, step.action.micro_batch
        sender = device if step.kind == "send" else step.peers[0]
        key = TransferKey("tied", exchange.round, lane.name, *ends, sender)
        if step.kind == "send":
            exchange.send(step.peer, key, shared_gradients(holders, ends, grads))
        elif step.kind == "receive":
            terms[step.action.segment] = exchange.receive(key).tensors
        else:
            grads.update(add_terms(holders, step.action.segment, dict(grads), terms))


@pytest.mark.parametrize(
    "groups, holders",
    [
        (("a", "b"), {"w": (0, 1)}),
        (("ab", "c"), {"w": (0, 1)}),
        (("a", "bcd"), {"w": (0, 1)}),
        (("ab", "c", "de"), {"w": (0, 2)}),
        (("a", "b", "c"), {"w": (0, 1, 2)}),
        (("a", "b", "c"), {"v": (0, 1), "w": (1, 2)}),  # the last segment knows nothing of v
        (("ab", "cde"), {"v": (0, 1), "w": (0, 1)}),
    ],
    ids=str,
)
def test_holders_of_a_tied_weight_sum_their_gradients(
    groups: tuple[str, ...], holders: dict[str, tuple[int, ...]]
) -> None:
    """Holders add in the order of segments, whatever the sizes of their groups, and end with the same bits."""
    made = lane(*groups)

    def gradient(index: int, name: str) -> torch.Tensor:
        return values(name, 6, index)

    def work(device: str, exchange: Exchange) -> dict[str, torch.Tensor]:
        own = next(i for i, group in enumerate(groups) if device in group)
        grads = {name: gradient(own, name) for name, segments in holders.items() if own in segments}
        grads["alone"] = torch.ones(3)
        sum_shared(exchange, made, device, holders, grads)
        return grads

    results = together(tuple("".join(groups)), work)
    for name, segments in holders.items():
        total = torch.zeros(6)
        for index in segments:
            total = total + gradient(index, name)
        assert all(torch.equal(results[d][name], total) for index in segments for d in groups[index])
    assert all(torch.equal(grads["alone"], torch.ones(3)) for grads in results.values())


def test_a_shared_weight_has_a_gradient_where_any_holders_loss_reaches_it() -> None:
    """Bug: a missing gradient became zeros.

    `half` is reached in the second segment only; `none` is reached nowhere, and weight decay then changed it.
    """
    groups = ("ab", "cde")
    holders = {"half": (0, 1), "none": (0, 1)}

    def work(device: str, exchange: Exchange) -> dict[str, torch.Tensor]:
        grads = {"half": values("half"[0], 6)} if device in groups[1] else {}
        sum_shared(exchange, lane(*groups), device, holders, grads)
        return grads

    for grads in together(tuple("".join(groups)), work).values():
        assert grads.keys() == {"half"} and torch.equal(grads["half"], values("h", 6))


KINDS = (
    torch.arange(6.0).view(2, 3),
    torch.arange(6.0).view(2, 3).t(),  # not contiguous
    torch.tensor([[True], [False]]),
    torch.arange(4, dtype=torch.float64),
    torch.tensor(3.5),
    torch.zeros(0, 4),
    torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    torch.tensor([2**40, -1]),
    torch.tensor([[1 + 2j], [-0.5j]]),  # Llama 4's rotations
)


@pytest.mark.parametrize("limit_bytes", [1 << 30, 1000, 24, 7, 1])
def test_tensors_arrive_as_they_were_sent(limit_bytes: int) -> None:
    """Every dtype and shape arrives by number, with its times and size.

    Bug: a tensor above 1 GiB was refused in the middle of a run; tensors larger than a message are sent in pieces.
    Bug: they lay wherever ZeroMQ had put them, where a matrix product may round otherwise than in torch's own memory.
    """
    key = TransferKey("values", 3, "main", 1, 2, "a")

    def work(name: str, exchange: Exchange) -> Any:
        exchange.start_round(3)
        if name == "a":
            exchange.send("b", key, dict(enumerate(KINDS)))
            return exchange.receive(TransferKey("thanks", 3, "main", 0, 0, "b"))
        arrival = exchange.receive(key)
        exchange.send("a", TransferKey("thanks", 3, "main", 0, 0, "b"), {})
        return arrival

    arrival = together(("a", "b"), work, listen=Listen(max_message_bytes=limit_bytes))["b"]
    assert arrival.tensors.keys() == set(range(len(KINDS)))
    for number, tensor in enumerate(KINDS):
        assert torch.equal(arrival.tensors[number], tensor)
        assert arrival.tensors[number].dtype == tensor.dtype
        assert arrival.tensors[number].data_ptr() % ALIGNMENT_BYTES == 0
    assert arrival.size_bytes == sum(t.numel() * t.element_size() for t in KINDS)
    assert arrival.sent_s <= arrival.arrived_s


def test_pieces_repeat_no_description() -> None:
    """Bug: every piece listed all tensors, so that a link's share carried a third more than tensors; now they take at
    least nine tenths of what is sent, even in the smallest pieces. A link says itself what a message takes.
    """
    key = TransferKey("push", 0, "main", 0, 0, "a")
    tensors = {f"model|roberta.encoder.layer.{n}.attention.self.query.weight": torch.rand(64, 64) for n in range(20)}
    with connected(("a", "b"), Listen(max_message_bytes=MIN_PIECE_BYTES)) as ends:
        sender, receiver = (Exchange(ends[name], COORDINATOR, torch.device("cpu")) for name in "ab")
        sender.send("b", key, tensors)
        arrival = receiver.receive(key)
        assert all(torch.equal(arrival.tensors[name], tensor) for name, tensor in tensors.items())
        before = ends["a"].sent_bytes["b"]
        assert arrival.size_bytes > 0.9 * before
        assert ends["a"].send("b", Message("a", {}, (PART,))) == ends["a"].sent_bytes["b"] - before > len(PART)


def test_the_coordinator_sends_tensors_in_pieces() -> None:
    """What a device asks it for comes among its orders, and neither is taken for the other."""
    key = TransferKey("parcel", 5, "", 0, 1, COORDINATOR)
    with listening() as (coordinator, _, exchange):
        sender = Exchange(coordinator, COORDINATOR, torch.device("cpu"))
        sender.split("b", 16)
        sender.send("b", key, {"w": torch.arange(20.0)})
        coordinator.send("b", Message("move", {}))
        assert torch.equal(exchange.receive(key).tensors["w"], torch.arange(20.0))
        assert exchange.recv_control("move", "values").kind == "move"


@contextmanager
def listening(round: int = 5) -> Iterator[tuple[Endpoint, Endpoint, Exchange]]:
    """Open bare links of a coordinator and a peer, and one worker's exchange."""
    with connected((COORDINATOR, "a", "b")) as ends:
        exchange = Exchange(ends["b"], COORDINATOR, torch.device("cpu"))
        exchange.start_round(round)
        yield ends[COORDINATOR], ends["a"], exchange


def header(**changes: Any) -> dict[str, Any]:
    """Return a header that describes three floats of round 5."""
    plain = {"attempt": [0, 0], "round": 5, "lane": "main", "segment": 1, "step": 0, "sent_s": 0.0}
    return {**plain, "tensors": [[7, "float32", [3]]], **changes}


PART = torch.ones(3).numpy().tobytes()


def test_stale_messages_are_dropped() -> None:
    """Messages of older rounds are dropped, even if they would fit; the current one arrives."""
    with listening() as (_, peer, exchange):
        zeros = bytes(12)
        for changes in ({"round": 4}, {"round": 4, "tensors": "garbage"}):
            peer.send("b", Message("values", header(**changes), (zeros,)))
        peer.send("b", Message("values", header(), (PART,)))
        arrival = exchange.receive(TransferKey("values", 5, "main", 1, 0, "a"))
        assert torch.equal(arrival.tensors[7], torch.ones(3))
        assert exchange.unclaimed == ()


def test_early_messages_are_kept_for_their_round() -> None:
    """Messages of the next round are kept; those of the old round are dropped when the new one starts."""
    with listening() as (_, peer, exchange):
        for round, step in ((6, 0), (5, 1), (5, 0)):
            peer.send("b", Message("values", header(round=round, step=step), (PART,)))
        exchange.receive(TransferKey("values", 5, "main", 1, 0, "a"))
        assert {(key.round, key.step) for _, key in exchange.unclaimed} == {(6, 0), (5, 1)}
        exchange.start_round(6)
        assert {(key.round, key.step) for _, key in exchange.unclaimed} == {(6, 0)}
        exchange.receive(TransferKey("values", 6, "main", 1, 0, "a"))


def test_messages_of_older_attempts_are_dropped_and_those_of_later_ones_kept() -> None:
    """An abort ends whatever is waited for; then only the new attempt counts, what of it came early included.

    The round may be an older one than before: what belongs to the attempt decides, not what round it is.
    """
    with listening() as (coordinator, peer, exchange):
        zeros = bytes(12)
        peer.send("b", Message("values", header(step=1), (zeros,)))
        peer.send("b", Message("values", header(attempt=[1, 2], round=3), (PART,)))
        peer.send("b", Message("values", header(step=2), (zeros,)))
        exchange.receive(TransferKey("values", 5, "main", 1, 2, "a"))
        for kind, attempt in (("commit", [0, 0]), ("move", [1, 2]), ("abort", [1, 2])):
            coordinator.send("b", Message(kind, {"attempt": attempt}))
        with pytest.raises(Aborted) as aborted:
            exchange.receive(TransferKey("values", 5, "main", 1, 9, "a"))
        exchange.start_attempt(aborted.value.attempt)
        assert [(attempt, key.round) for attempt, key in exchange.unclaimed] == [((1, 2), 3)]
        coordinator.send("b", Message("drop_old", {"attempt": [1, 2]}))
        told = [exchange.recv_control("commit", "move", "drop_old").kind for _ in range(2)]
        assert told == ["move", "drop_old"], "commands of older attempts too"
        exchange.start_round(3)
        peer.send("b", Message("values", header(attempt=[1, 1], round=3), (zeros,)))
        peer.send("b", Message("values", header(attempt=[1, 2], round=3, step=1), (PART,)))
        coordinator.send("b", Message("abort", {"attempt": [1, 2]}))
        for step in (1, 0):
            arrival = exchange.receive(TransferKey("values", 3, "main", 1, step, "a"))
            assert torch.equal(arrival.tensors[7], torch.ones(3))
        assert exchange.unclaimed == ()


@pytest.mark.parametrize("beside", [False, True])
def test_a_new_attempt_does_not_wait_for_what_the_old_one_had_queued(beside: bool) -> None:
    """Bug: pieces of a broken round drained first, at the share's rate, though all devices ignored them: the round that
    was run again waited as long as they lasted.
    """
    rate, key = 20e3, TransferKey("push", 0, "main", 0, 0, "a")

    with connected(("a", "b")) as ends:
        sender, receiver = (Exchange(ends[name], COORDINATOR, torch.device("cpu")) for name in "ab")
        if not beside:
            sender.pace("b", rate)

        def send(size: int) -> None:
            tensors = {"w": torch.ones(size)}
            sender.send_beside("b", key, tensors, rate) if beside else sender.send("b", key, tensors)

        send(100_000)
        for exchange in (sender, receiver):
            exchange.start_attempt(Attempt(1, 1))
        send(10)
        assert receiver.receive(key).tensors["w"].shape == (10,)
        assert ends["a"].sent_bytes["b"] < 100_000, "of 400 kB that were queued"
        sender.close()


@pytest.mark.parametrize(
    "changes",
    [
        {"tensors": []},
        {"tensors": [[7, "float32", [3]], [8, "float32", [3]]]},
        {"tensors": [[7, "float32", [4]]]},
        {"tensors": [[7, "object", [3]]]},
        {"tensors": [[7, ["float32"], [3]]]},
        {"tensors": [[7, "float64", [3]]]},
        {"tensors": [[7.5, "float32", [3]]]},
        {"tensors": [[None, "float32", [3]]]},
        {"tensors": [[7, "float32"]]},
        {"tensors": [[7, "float32", "three"]]},
        {"tensors": None},
        {"segment": [1]},
        {"step": {"x": 1}},
        {"round": "later"},
        {"round": None},
        {"sent_s": "now"},
        {"sent_s": 10**400},
        {"described": [1]},
        {"piece": 5},
        {"piece": [2, 2]},
        {"piece": [-1, 2]},
        {"piece": [0, "many"]},
        {"piece": [0, 0]},
    ],
    ids=str,
)
def test_a_malformed_message_is_named(changes: dict[str, Any]) -> None:
    """The refusal names the sender and the kind of message."""
    with listening() as (_, peer, exchange):
        peer.send("b", Message("values", header(**changes), (PART,)))
        with pytest.raises(Refused, match="^a sent a 'values' that does not describe its tensors"):
            exchange.receive(TransferKey("values", 5, "main", 1, 0, "a"))


def test_pieces_of_other_sizes_than_described_are_malformed() -> None:
    """Sizes are checked before memory is allocated, and an incomplete message is dropped with its round."""
    with listening() as (_, peer, exchange):
        huge = header(piece=[0, 2], tensors=[[7, "float32", [1 << 50]]])
        peer.send("b", Message("values", huge, (PART,)))
        peer.send("b", Message("values", {**huge, "piece": [1, 2]}, (PART,)))
        with pytest.raises(Refused, match="24 bytes came"):
            exchange.receive(TransferKey("values", 5, "main", 1, 0, "a"))
        peer.send("b", Message("values", header(piece=[0, 2], step=3), (PART,)))
        peer.send("b", Message("values", header(), (PART,)))
        exchange.receive(TransferKey("values", 5, "main", 1, 0, "a"))
        assert exchange.unfinished == 1
        exchange.start_round(6)
        assert exchange.unfinished == 0


def test_pieces_beyond_what_was_described_are_not_kept() -> None:
    """Bug: the pieces of a message were kept whatever its tensors took, so that a peer could fill the memory."""
    with listening() as (_, peer, exchange):
        for number in range(3):
            peer.send("b", Message("values", header(piece=[number, 9]), (PART[:8],)))
        with pytest.raises(Refused, match="^a sent a 'values' .*more bytes came than the 12 announced"):
            exchange.receive(TransferKey("values", 5, "main", 1, 0, "a"))
        assert exchange.unfinished == 0


def test_a_piece_that_is_lost_costs_its_message_and_no_other() -> None:
    """Bug: the next piece came over the connection that was back, and ended the whole training as malformed. What is
    left of such a message is ignored, until it is sent anew; the links' own numbers tell of the loss.
    """
    with listening() as (_, peer, exchange):
        for step, pieces in ((1, (0, 2)), (2, (1, 2)), (3, (0, 1, 0, 1, 2)), (1, (0, 1, 2))):
            for number in pieces:
                part = PART[4 * number : 4 * number + 4]
                peer.send("b", Message("values", header(step=step, piece=[number, 3]), (part,)))
        for step in (3, 1):
            arrival = exchange.receive(TransferKey("values", 5, "main", 1, step, "a"))
            assert torch.equal(arrival.tensors[7], torch.ones(3))
        assert exchange.unfinished == 0 and exchange.unclaimed == ()


@pytest.mark.parametrize("counts", [(2, 3), (3, 2)])
def test_pieces_of_another_cut_are_ignored(counts: tuple[int, int]) -> None:
    """A piece that says another number of pieces than the first one is of another sending: nothing is joined."""
    with listening() as (_, peer, exchange):
        for number, count in enumerate(counts):
            peer.send("b", Message("values", header(step=1, piece=[number, count]), (PART[:6],)))
        peer.send("b", Message("values", header(), (PART,)))
        exchange.receive(TransferKey("values", 5, "main", 1, 0, "a"))
        assert exchange.unfinished == 0 and exchange.unclaimed == ()


def test_an_empty_part_with_a_shape_is_malformed() -> None:
    """An empty part that claims to be three floats is malformed, so uninitialised memory never enters training."""
    with listening() as (_, peer, exchange):
        peer.send("b", Message("values", header(), (b"",)))
        with pytest.raises(Refused, match="does not describe its tensors"):
            exchange.receive(TransferKey("values", 5, "main", 1, 0, "a"))


def test_control_messages_are_received_by_kind_and_stop_ends_any_wait() -> None:
    """Control messages are received by kind, in order; stop ends any wait; a peer cannot send control messages."""
    with listening() as (coordinator, peer, exchange):
        coordinator.send("b", Message("later", {"n": 1}))
        coordinator.send("b", Message("commit", {"n": 2}))
        coordinator.send("b", Message("commit", {"n": 3}))
        assert [exchange.recv_control("commit").header["n"] for _ in range(2)] == [2, 3]
        assert exchange.recv_control("commit", "later").header["n"] == 1
        peer.send("b", Message("stop", {}))
        with pytest.raises(Refused, match="a sent a 'stop'"):
            exchange.recv_control("commit")
        coordinator.send("b", Message("stop", {}))
        with pytest.raises(Stopped):
            exchange.receive(TransferKey("values", 5, "main", 1, 0, "a"))


PARTS = [b"", b"abcdefg", b"h", b"", b"ijklmnop", b"q", b""]


@pytest.mark.parametrize("limit_bytes", range(1, 20))
def test_split_and_join_keep_the_parts(limit_bytes: int) -> None:
    """No message exceeds the limit, all but the last are full, and joining gives the same parts."""
    cut = list(split_into_pieces([memoryview(part) for part in PARTS], limit_bytes))
    sizes = [sum(part.nbytes for part in piece) for piece in cut]
    assert max(sizes) <= limit_bytes and all(size == limit_bytes for size in sizes[:-1]) and sum(sizes) == 17
    slices = [part for piece in cut for part in piece]
    assert [bytes(part) for part in join_pieces(slices, [len(part) for part in PARTS])] == PARTS


def test_no_parts_make_one_message() -> None:
    """A message without tensors is still sent, once."""
    assert list(split_into_pieces([], 5)) == [()]
    assert join_pieces([], []) == []


@pytest.mark.parametrize("sizes", [[2], [4], [], [5, -2], [1 << 60]])
def test_sizes_that_differ_from_the_bytes_are_refused(sizes: list[int]) -> None:
    """Sizes are compared before any memory is allocated."""
    with pytest.raises(ValueError, match="3 bytes came"):
        join_pieces([memoryview(b"abc")], sizes)
