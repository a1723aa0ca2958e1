"""Cost of sending tensors: memory copies on each side, and CPU time beside zmq and CURVE alone.

Copies are counted by peak memory: every simultaneous copy of a tensor of 64 MiB raises the peak of its process by
64 MiB. The receiver must hold the tensor once, which does not count as a copy. The bare side sends frames of the same
size over zmq and CURVE and drops what arrives.
"""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import Figure, median_and_spread
from benchmarks.runtime.transfer_peer import BARE, OURS, PING, PeerConfig
from fleetune.contracts import json_io
from fleetune.launching import Command, Job, ProcessLauncher
from fleetune.links.authentication import new_key_pair

SIZE_BYTES = 64 << 20
SIDES = ("send", "receive")


def transfer_costs(folder: Path, repeats: int) -> list[Figure]:
    """Figures of transfers between two processes, both ways of sending in turns; `folder` receives their logs."""
    events = _transfers(folder, repeats + 1)
    of = {kind: [e for e in events if e["kind"] == kind][1:] for kind in (OURS, BARE)}  # the first warms up
    figures = []
    for side in SIDES:
        held = statistics.median(e[side][1] for e in of[OURS]) / SIZE_BYTES
        figures.append(
            Figure(
                name=f"copies_{side}",
                value=round(held - (1.0 if side == "receive" else 0.0), 2),
                unit="copies",
                target=1.0,
                better="lower",
                about=f"memory beyond the tensor itself while {SIZE_BYTES >> 20} MiB travel",
            )
        )
    for side in SIDES:
        ours, bare = (_per_gb(of[kind], side) for kind in (OURS, BARE))
        figures.append(
            Figure(
                name=f"cpu_{side}",
                unit="x bare",
                better="lower",
                about=f"CPU time beside zmq + CURVE alone: {ours:.2f} and {bare:.2f} s/GB",
                **median_and_spread([a[side][0] / b[side][0] for a, b in zip(of[OURS], of[BARE], strict=True)]),
            )
        )
    trips_s = next(e["round_trips_s"] for e in events if e["kind"] == PING)
    about = "a small message there and back, median"
    value = statistics.median(trips_s)
    return [*figures, Figure(name="control_round_trip", unit="s", better="lower", about=about, value=value)]


def _per_gb(events: Sequence[dict[str, Any]], side: str) -> float:
    return statistics.median(float(e[side][0]) for e in events) / SIZE_BYTES * 1e9


def _transfers(folder: Path, repeats: int) -> list[dict[str, Any]]:
    """Start both processes; returns the sender's events."""
    keys = {side: new_key_pair() for side in SIDES}
    jobs: list[Job] = []

    def start(side: str, other: str) -> Job:
        config = PeerConfig(
            public=keys[side].public.decode(),
            secret=keys[side].secret.decode(),
            other=keys[other].public.decode(),
            sends=side == "send",
            meeting=str(folder / "meeting.json"),
            size_bytes=SIZE_BYTES,
            repeats=repeats,
        )
        line = json_io.text(config).replace("\n", " ").encode()
        command = Command(module="benchmarks.runtime.transfer_peer", first_line=line, log=folder / f"{side}.log")
        jobs.append(ProcessLauncher().start(command))
        return jobs[-1]

    try:
        start("receive", "send")
        sender = start("send", "receive")
        events = [json.loads(line) for line in sender.lines()]
        if sender.wait() != 0:
            raise RuntimeError(f"the sender failed:\n{sender.tail()}")
        return events
    finally:
        for job in jobs:
            job.stop(grace_s=0.5)
