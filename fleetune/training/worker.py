"""One device's process: `python -m fleetune.training.worker --task FILE`, keys on the first line of stdin.

hello -> welcome          addresses of the others
loaded -> commit -1       everybody holds its units; the first round begins
ready r -> commit r       gradients are whole; parameters move; the next round begins
          (checkpoint)    -> saved
stop                      ends the process, whatever it waits for
"""

import argparse
import json
import math
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from fleetune.contracts import wire
from fleetune.errors import FleetuneError, Refused, TryAgain
from fleetune.launching.pace import Pace
from fleetune.links.endpoint import Endpoint, Listen
from fleetune.links.keys import KeyPair
from fleetune.models.graph import parse_graph
from fleetune.models.memory import peak_memory_bytes
from fleetune.models.segment import Segment
from fleetune.models.skeleton import base_skeleton, saved_configuration, skeleton
from fleetune.models.source import source_folder
from fleetune.models.start import START
from fleetune.models.tied import tied_by_unit
from fleetune.models.weights import Weights
from fleetune.training.batches import Batches
from fleetune.training.checkpoints import drop_older, folder_of, restore, write_shard
from fleetune.training.exchange import Exchange, Stopped
from fleetune.training.place import Place, place_of, talks_to
from fleetune.training.reduction import tied_holders
from fleetune.training.rounds import Rounds, Tools
from fleetune.training.task import Secrets, WorkerTask
from fleetune.training.updates import Updates, square_norm

COORDINATOR = "coordinator"
BEAT_S = 0.5


def main() -> int:
    """Run one worker; 0 when the coordinator said stop after the last round."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--task", type=Path, required=True)
    task = wire.read(WorkerTask, arguments.parse_args().task)
    secrets = wire.parse(Secrets, sys.stdin.buffer.readline(), "keys on stdin")
    torch.set_num_threads(1)
    keys = KeyPair(public=secrets.public.encode(), secret=secrets.secret.encode())
    allowed = {name: key.encode() for name, key in secrets.peers.items()}
    allowed[COORDINATOR] = secrets.coordinator_public.encode()
    listen = Listen(bind=task.bind, address=task.address, delays_s=task.delays_s)
    with Endpoint(task.device, keys, allowed, run=task.run, listen=listen, note=_note) as endpoint:
        endpoint.connect(COORDINATOR, secrets.coordinator_address, allowed[COORDINATOR])
        return _serve(task, endpoint, allowed)


def _serve(task: WorkerTask, endpoint: Endpoint, allowed: dict[str, bytes]) -> int:
    exchange = Exchange(endpoint, COORDINATOR, torch.device(task.accelerator), task.plan.revision)
    beat = _Beat(exchange)
    try:
        _measure_offset(exchange, endpoint.address)
        exchange.tell("hello", {"address": endpoint.address, "pid": os.getpid()})
        addresses = exchange.hear("welcome").header["addresses"]
        for peer in talks_to(task.plan, task.device):
            endpoint.connect(peer, addresses[peer], allowed[peer])
        with beat:
            _Worker(task, exchange, endpoint).run()
        return 0
    except Stopped:
        return 0
    except Exception as error:
        print(traceback.format_exc(), file=sys.stderr, flush=True)  # noqa: T201 - the worker's log
        code = error.exit_code if isinstance(error, FleetuneError) else TryAgain.exit_code
        why = str(error) if isinstance(error, FleetuneError) else f"{type(error).__name__}: {error}"
        exchange.tell("failed", {"why": why[:2000], "trace": traceback.format_exc()[-4000:], "exit_code": code})
        return code


class _Worker:
    """The device's units, data and optimizer, and the loop over rounds."""

    def __init__(self, task: WorkerTask, exchange: Exchange, endpoint: Endpoint) -> None:
        self._task, self._exchange, self._endpoint = task, exchange, endpoint
        self._device = torch.device(task.accelerator)
        self._place = place_of(task.plan, task.device)
        profile = Path(task.profile_folder)
        graph = parse_graph((profile / "graph.json").read_bytes(), "graph.json")
        config = saved_configuration(profile / "model")
        module = skeleton(config, task.model)
        tied = tied_by_unit(graph, module)
        self._segment = Segment(graph, self._place.segment.units, module, self._device)
        self._segment.load(Weights(base_skeleton(config, task.model), source_folder(task.model), profile / START))
        self._segment.train()
        self._updates = Updates(self._segment.parameters, task.training)
        self._pace = Pace(task.cores)
        if task.state is not None:
            restore(Path(task.state), self._segment, self._updates)
        self._tied = tied_holders(tied, self._place.lane)
        self._sent_before: dict[str, int] = {}
        self._saved = 0
        tools = Tools(
            segment=self._segment,
            exchange=exchange,
            batches=Batches(Path(task.data_folder), task.plan, task.seed, self._device),
            updates=self._updates,
            pace=self._pace,
            tied=self._tied,
        )
        self._rounds = Rounds(task.plan, self._place, tools, task.seed)

    def run(self) -> None:
        """Rounds until the coordinator says stop."""
        self._exchange.tell("loaded", {})
        self._exchange.hear("begin")
        for round in range(self._task.first_round, self._task.training.rounds):
            work = self._rounds.run(round)
            norm = self._square_norm(self._place)
            if not (math.isfinite(work.loss) and math.isfinite(norm)):
                raise Refused(
                    f"training: round {round} has a loss of {work.loss} and gradients of squared norm {norm}; "
                    "choose a smaller learning_rate, or clip_norm"
                )
            self._exchange.tell(
                "ready",
                {
                    "round": round,
                    "loss": work.loss,
                    "square_norm": norm,
                    "rows": [[r.device, r.action, r.start_s, r.end_s, r.bytes] for r in work.rows],
                    "peak_memory_bytes": peak_memory_bytes(self._device),
                    "sent_bytes": self._sent(),
                },
            )
            commit = self._commit(round)
            if self._saved:  # it is whole, since all were asked before this commit
                drop_older(Path(self._task.work), self._saved)
            with self._pace.hold():
                self._updates.apply(round, float(commit["scale"]))
            if commit["checkpoint"] and self._place.leads:
                folder = folder_of(Path(self._task.work), round + 1)
                file = write_shard(folder, f"segment-{self._place.index}", self._segment, self._updates)
                self._exchange.tell("saved", {"round": round + 1, "file": file})
                self._saved = round + 1
        self._exchange.hear("nothing but stop")

    def _commit(self, round: int) -> dict[str, Any]:
        """The commit of this round; one of an older round was applied already."""
        while True:
            header = self._exchange.hear("commit").header
            if header["round"] == round:
                return header

    def _square_norm(self, place: Place) -> float:
        """Of gradients that this device speaks for: its group's, and of shared weights only in their first segment."""
        if self._task.training.clip_norm is None or not place.leads:
            return 0.0
        grads = self._updates.gradients()
        mine = [g for name, g in grads.items() if self._tied.get(name, (place.index,))[0] == place.index]
        return square_norm(mine) if mine else 0.0

    def _sent(self) -> dict[str, int]:
        """Bytes sent to each worker since the last call."""
        now = {peer: n for peer, n in self._endpoint.sent_bytes.items() if peer != COORDINATOR}
        delta = {peer: n - self._sent_before.get(peer, 0) for peer, n in now.items()}
        self._sent_before = now
        return {peer: n for peer, n in delta.items() if n}


class _Beat:
    """Says every BEAT_S that the process lives, and how often the compute thread has got on."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._progress = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="beat", daemon=True)
        exchange.beaten = self._count

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _count(self) -> None:
        self._progress += 1

    def _run(self) -> None:
        while not self._ended.wait(BEAT_S):
            self._exchange.tell("beat", {"progress": self._progress, "working": not self._exchange.waiting})


def _measure_offset(exchange: Exchange, address: str) -> None:
    """Set the offset to the coordinator's clock from the quickest of several round trips (as NTP does)."""
    best_s = float("inf")
    for _ in range(5):
        sent_s = time.monotonic()
        exchange.tell("ping", {"address": address})
        there_s = float(exchange.hear("pong").header["now_s"])
        back_s = time.monotonic()
        if back_s - sent_s < best_s:
            best_s = back_s - sent_s
            exchange.offset_s = there_s - (sent_s + back_s) / 2


def _note(sentence: str) -> None:
    print(json.dumps({"refused": sentence}), file=sys.stderr, flush=True)  # noqa: T201 - the worker's log


if __name__ == "__main__":
    sys.exit(main())
