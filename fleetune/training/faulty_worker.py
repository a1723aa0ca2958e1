"""A worker that meets faults: `python -m fleetune.training.faulty_worker --task FILE`, with its faults beside FILE.

Faults happen at its messages and before its steps, so that a worker without faults has no code for them.
"""

import functools
import os
import queue
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fleetune.contracts import json_io
from fleetune.contracts.plan import FORWARD as FORWARD_LETTER
from fleetune.links.endpoint import Endpoint
from fleetune.links.message import Message
from fleetune.links.relay import Relay
from fleetune.program import Step
from fleetune.program.steps import RUN
from fleetune.training.exchange import BACKUP_ITEMS, Arrival, Exchange, Tensors, TransferKey
from fleetune.training.faults import (
    ALL_REDUCE,
    BACKUP,
    BACKWARD,
    CHECKPOINT,
    COMMIT,
    CUT,
    FAULTS,
    FORWARD,
    FREEZE,
    GPU_ERROR,
    KILL,
    MEMORY,
    MOVE,
    PREPARED,
    SEVER,
    DeviceFaults,
    FaultsAhead,
)
from fleetune.training.parcels import PARCEL
from fleetune.training.rounds import RING
from fleetune.training.worker import main

POINT_OF = {"values-F": FORWARD, "values-B": BACKWARD, RING: ALL_REDUCE, PARCEL: MOVE, BACKUP_ITEMS: BACKUP}
"""Kind of a message between devices -> the point at which its link may break."""
SAID_AT = {"moved": MOVE, "saved": CHECKPOINT}
"""Kind of a message to the coordinator -> the point that comes before it."""
LOST_WITHIN_S = 20.0


class FaultyExchange(Exchange):
    """Meets the faults of its device."""

    def __init__(self, endpoint: Endpoint, coordinator: str, device: torch.device, faults: DeviceFaults) -> None:
        super().__init__(endpoint, coordinator, device)
        self._faults, self._relayed = FaultsAhead(faults), faults.relayed
        self._relays: dict[str, Relay] = {}
        self._targets: dict[str, str] = {}
        """Device -> the address that its relay leads to."""
        self._newest = -1
        self._backups = 0

    def start_round(self, round: int) -> None:
        """Begin a round; rounds that are run again are no new ones."""
        super().start_round(round)
        self._newest, self._backups = max(self._newest, round), 0

    def at_step(self, step: Step) -> None:
        """Pass the point before a forward or backward."""
        if step.kind == RUN:
            self._pass(FORWARD if step.action.letter == FORWARD_LETTER else BACKWARD)

    def send(self, peer: str, key: TransferKey, tensors: Tensors, described: Mapping[str, Any] | None = None) -> None:
        """Send tensors; in a recovery, the point comes before."""
        if POINT_OF.get(key.kind) == MOVE:
            self._pass(MOVE)
        super().send(peer, key, tensors, described)

    def _transmit(self, peer: str, message: Message) -> int:
        """Send a message, or a piece of one; it is lost if its link breaks, and those after it are not."""
        point = POINT_OF.get(message.kind, "")
        fault = self._faults.take((CUT, SEVER), point, self._newest) if point and peer in self._relays else None
        if fault is None:
            return super()._transmit(peer, message)
        relay, rest_bytes = self._relays[peer], sum(memoryview(part).nbytes for part in message.parts)
        self._endpoint.wait_connected(peer, LOST_WITHIN_S)
        relay.swallow()
        sent_bytes = super()._transmit(peer, message)
        until_s = time.monotonic() + LOST_WITHIN_S
        while rest_bytes > 0 and time.monotonic() < until_s:
            try:
                rest_bytes -= relay.swallowed.get(timeout=LOST_WITHIN_S)
            except queue.Empty:
                break
        (relay.cut if fault.kind == CUT else relay.close)()
        return sent_bytes

    def send_beside(self, peer: str, key: TransferKey, tensors: Tensors, bytes_per_s: float) -> None:
        """Send a backup; the point lies between the first one of a version and the second."""
        if self._backups:
            self._pass(BACKUP)
        super().send_beside(peer, key, tensors, bytes_per_s)
        self._backups += 1

    def receive(self, key: TransferKey) -> Arrival:
        """Wait for tensors; in a ring, those that it sends itself are on their way."""
        if key.kind == RING:
            self._pass(ALL_REDUCE)
        return super().receive(key)

    def send_control(self, kind: str, header: dict[str, Any], *parts: bytes) -> None:
        """Send a message to the coordinator."""
        if kind in SAID_AT:
            self._pass(SAID_AT[kind])
        super().send_control(kind, header, *parts)
        if kind == "ready":
            self._pass(PREPARED)

    def recv_control(self, *kinds: str) -> Message:
        """Wait for a message of the coordinator; links to devices that may break lead through relays."""
        message = super().recv_control(*kinds)
        if message.kind == "commit":
            self._pass(COMMIT)
        if message.kind == "welcome":
            self._lead_through_relays(message.header["addresses"])
        elif message.kind == "move":
            self._lead_through_relays(message.header["order"].get("addresses", {}))
        return message

    def _lead_through_relays(self, addresses: dict[str, Any]) -> None:
        """Replace the addresses of other devices by those of relays, a new one where a device has come back.

        Where no link is to break any more, only connections that lead through a relay already go on so.
        """
        may_break = self._relayed or self._faults.any_of((CUT, SEVER))
        for name, address in addresses.items():
            if name == self.name:
                continue
            if self._targets.get(name) != address:
                if not may_break:
                    continue
                self._targets[name], self._relays[name] = str(address), Relay(str(address))
            addresses[name] = self._relays[name].address

    def _pass(self, point: str) -> None:
        """Pass a point, if the device gets past it."""
        fault = self._faults.take((KILL, FREEZE, MEMORY, GPU_ERROR), point, self._newest)
        if fault is None:
            return
        if fault.kind == MEMORY:
            raise MemoryError(f"fault {fault.number}: no memory at {point}")
        if fault.kind == GPU_ERROR:
            raise torch.AcceleratorError(f"fault {fault.number}: the GPU failed at {point}")
        os.kill(os.getpid(), signal.SIGKILL if fault.kind == KILL else signal.SIGSTOP)


if __name__ == "__main__":
    own = json_io.read(DeviceFaults, Path(sys.argv[2]).with_name(FAULTS))
    sys.exit(main(exchange=functools.partial(FaultyExchange, faults=own)))
