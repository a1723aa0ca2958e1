"""How many messages of a ring all-reduce a member holds at once, which `clock.costs.received_bytes` counts on."""

import math
import threading
import weakref
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from fleetune.contracts import link_frames
from fleetune.training.exchange import Arrival, TransferKey
from fleetune.training.gradients import ring_all_reduce

PATIENCE_S = 30.0


class Mail:
    """Messages of a group that arrive at once, and the members that wait for some."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.arrived: dict[str, dict[TransferKey, torch.Tensor]] = defaultdict(dict)
        self.waiting: dict[str, TransferKey] = {}

    def put(self, peer: str, key: TransferKey, tensor: torch.Tensor) -> None:
        """Let a message arrive, as a copy."""
        with self.changed:
            self.arrived[peer][key] = tensor.clone()
            self.changed.notify_all()

    def take(self, name: str, key: TransferKey) -> torch.Tensor:
        """Wait for a message."""
        with self.changed:
            if key not in self.arrived[name]:
                self.waiting[name] = key
                self.changed.notify_all()
                assert self.changed.wait_for(lambda: key in self.arrived[name], PATIENCE_S)
                del self.waiting[name]
            return self.arrived[name].pop(key)

    def wait_until_all_wait(self, names: tuple[str, ...]) -> None:
        """Return when each of these members waits for a message that nobody has sent: one that has been told of its
        message, but has not run since, does not."""

        def stuck() -> bool:
            return all(name in self.waiting and self.waiting[name] not in self.arrived[name] for name in names)

        with self.changed:
            assert self.changed.wait_for(stuck, PATIENCE_S)


class Member:
    """A member's end of the links, as far as the ring uses it."""

    def __init__(self, mail: Mail, name: str) -> None:
        self.mail, self.name = mail, name
        self.received: list[weakref.ref[torch.Tensor]] = []
        self.held_before = 0
        """Most messages that were received and still held when the next one was asked for."""

    def send(self, peer: str, key: TransferKey, tensors: dict[int, torch.Tensor]) -> None:
        """Send the only tensor of a message."""
        self.mail.put(peer, key, tensors[0])

    def receive(self, key: TransferKey) -> Arrival:
        """Receive a message."""
        self.held_before = max(self.held_before, sum(each() is not None for each in self.received))
        tensor = self.mail.take(self.name, key)
        self.received.append(weakref.ref(tensor))
        return Arrival({0: tensor}, 1.0, 1.0, 0)


@contextmanager
def all_but_the_last(group: tuple[str, ...], mail: Mail, elements: int = 12) -> Iterator[dict[str, Any]]:
    """Run the ring of all members but the last, each in a thread; yields what they have at the end."""
    found: dict[str, Any] = {}

    def run(name: str) -> None:
        found[name] = ring_of(Member(mail, name), group, elements)

    threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in group[:-1]]
    for thread in threads:
        thread.start()
    mail.wait_until_all_wait(group[:-1])
    yield found
    for thread in threads:
        thread.join(PATIENCE_S)


def ring_of(member: Member, group: tuple[str, ...], elements: int = 12) -> torch.Tensor:
    """Sum elements, each the member's place, over the group."""
    flat = torch.full((elements,), float(group.index(member.name)))
    ring_all_reduce(member, group, TransferKey("ring", 0, "main", 0, 0, member.name), flat)  # type: ignore[arg-type]
    return flat


@pytest.mark.parametrize("members", [2, 3, 4, 6])
def test_a_late_member_finds_all_messages_but_one_waiting(members: int) -> None:
    """Of a group of n, n - 1 messages of an n-th of the gradients arrive before the last member begins: together with
    the copy that one is joined into as large as the gradients. It then holds no message when it asks for the next."""
    mail, group = Mail(), tuple("abcdef"[:members])
    late = Member(mail, group[-1])
    with all_but_the_last(group, mail) as found:
        waiting = mail.arrived[late.name].values()
        assert [tensor.numel() for tensor in waiting] == [12 // members] * (members - 1)
        found[late.name] = ring_of(late, group)
    assert late.held_before == 0
    assert len(late.received) == 2 * (members - 1)
    assert all(torch.equal(found[name], torch.full((12,), float(sum(range(members))))) for name in group)


@pytest.mark.parametrize(("members", "elements"), [(2, 100), (3, 101), (4, 7), (3, 1)])
def test_a_late_member_finds_no_more_in_slices(members: int, elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of eight elements; odd numbers of elements leave slices of unequal lengths, and empty ones."""
    monkeypatch.setattr(link_frames, "RING_SLICE_BYTES", 32)
    mail, group = Mail(), tuple("abcdef"[:members])
    late = Member(mail, group[-1])
    with all_but_the_last(group, mail, elements) as found:
        waiting = mail.arrived[late.name].values()
        assert len(waiting) == math.ceil(math.ceil(elements / members) / 8) * (members - 1)
        assert sum(map(len, waiting)) <= math.ceil(elements / members) * (members - 1)
        found[late.name] = ring_of(late, group, elements)
    assert late.held_before == 0
    assert all(torch.equal(found[name], torch.full((elements,), float(sum(range(members))))) for name in group)


def test_a_slice_is_sent_on_before_the_next_one_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """a adds the first of four slices, and sends it on, while it waits for the second."""
    monkeypatch.setattr(link_frames, "RING_SLICE_BYTES", 32)
    mail, group = Mail(), ("a", "b")

    def sent(step: int) -> TransferKey:
        return TransferKey("ring", 0, "main", 0, step, "a")

    with all_but_the_last(group, mail, 64) as found:
        assert {key.step for key in mail.arrived["b"]} == {0, 1, 2, 3}
        mail.put("a", replace(sent(0), sender="b"), torch.ones(8))
        mail.wait_until_all_wait(("a",))
        assert sent(4) in mail.arrived["b"] and sent(5) not in mail.arrived["b"]
        ring_of(Member(mail, "b"), group, 64)
    assert torch.equal(found["a"], torch.ones(64))
