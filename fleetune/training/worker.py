"""One device's process: `python -m fleetune.training.worker --task FILE`, with its keys on the first line of stdin.

The worker's messages and the coordinator's answers:

    hello -> welcome          addresses of the other workers; from now on a beat every half second -> heard
    loaded -> begin           all workers hold their units; the first round begins
    ready r -> commit r       gradients are complete; parameters take their step; the next round begins
              (checkpoint)    -> saved
    save r                    -> saved: the state after r rounds, from a thread beside the running round
    stop                      ends the process, whatever it waits for
"""

import argparse
import json
import math
import os
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from fleetune import filesystem
from fleetune.contracts import json_io
from fleetune.errors import FleetuneError, Refused, TryAgain
from fleetune.launching.process_limits import OUT_OF_MEMORY_EXIT_CODE, CpuThrottle, is_out_of_memory
from fleetune.links.authentication import KeyPair
from fleetune.links.endpoint import Endpoint, Listen
from fleetune.models.graph import parse_graph
from fleetune.models.init_weights import INIT_WEIGHTS
from fleetune.models.process_memory import peak_memory_bytes
from fleetune.models.segment import SegmentRunner
from fleetune.models.skeleton import base_skeleton, saved_configuration, skeleton
from fleetune.models.source import source_folder
from fleetune.models.units import tied_parameters_by_unit
from fleetune.models.weights import WeightReader
from fleetune.training.assignment import assignment_of, peers_of
from fleetune.training.checkpoints import SAVE, checkpoint_folder, delete_checkpoint, restore_segment
from fleetune.training.committed_state import CommittedState
from fleetune.training.exchange import Exchange, Stopped
from fleetune.training.gradients import gradient_norms, pack_norms, tied_holders
from fleetune.training.liveness import COMPUTING, SAVING, Heartbeat
from fleetune.training.measurements import encode_rows
from fleetune.training.optimizer import NamedOptimizer
from fleetune.training.rounds import Batches, RoundContext, RoundResult, RoundRunner
from fleetune.training.task import COORDINATOR, WorkerKeys, WorkerTask

EXIT_DELAY_S = 0.5
KEPT_CHECKPOINTS = 2
"""Number of checkpoints that stay on a device."""


def main() -> int:
    """Run one worker; return the exit code, 0 if the coordinator said stop."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--task", type=Path, required=True)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a machine that shuts down: the coordinator lets it write first
    task = json_io.read(WorkerTask, arguments.parse_args().task)
    secrets = json_io.parse(WorkerKeys, sys.stdin.buffer.readline(), "keys on stdin")
    torch.set_num_threads(task.threads)
    keys = KeyPair(public=secrets.public.encode(), secret=secrets.secret.encode())
    allowed = {name: key.encode() for name, key in secrets.peers.items()}
    allowed[COORDINATOR] = secrets.coordinator_public.encode()
    listen = Listen(bind=task.bind, address=task.address, delays_s=task.delays_s, urgent=SAVE)
    with Endpoint(task.device, keys, allowed, run=task.run, listen=listen, note=_note) as endpoint:
        endpoint.connect(COORDINATOR, secrets.coordinator_address, allowed[COORDINATOR])
        return _serve(task, endpoint, allowed)


def _serve(task: WorkerTask, endpoint: Endpoint, allowed: dict[str, bytes]) -> int:
    exchange = Exchange(endpoint, COORDINATOR, torch.device(task.accelerator), task.plan.revision)
    beat = Heartbeat(exchange, endpoint, COORDINATOR, lambda why: _exit_abandoned(exchange, why))
    try:
        exchange.send_control("hello", {"address": endpoint.address, "pid": os.getpid()})
        with beat.running():
            addresses = exchange.recv_control("welcome").header["addresses"]
            for peer in peers_of(task.plan, task.device):
                endpoint.connect(peer, addresses[peer], allowed[peer])
            _Worker(task, exchange, endpoint, beat).run()
        return 0
    except Stopped:
        return 0
    except Exception as error:
        with suppress(OSError):  # the log's disk may be full
            print(traceback.format_exc(), file=sys.stderr, flush=True)  # noqa: T201 - the worker's log
        if is_out_of_memory(error):
            return OUT_OF_MEMORY_EXIT_CODE  # the coordinator reports the device's memory
        code = error.exit_code if isinstance(error, FleetuneError) else TryAgain.exit_code
        known = (
            error if isinstance(error, FleetuneError) else filesystem.disk_error(error, filesystem.folders(task.work))
        )
        why = str(known) if known else f"{type(error).__name__}: {error}"
        exchange.send_control("failed", {"why": why[:2000], "trace": traceback.format_exc()[-4000:], "exit_code": code})
        return code


class _Worker:
    """Holds the device's units, data and optimizer, and runs the loop over rounds."""

    def __init__(self, task: WorkerTask, exchange: Exchange, endpoint: Endpoint, beat: Heartbeat) -> None:
        self._task, self._exchange, self._endpoint, self._beat = task, exchange, endpoint, beat
        self._device = torch.device(task.accelerator)
        self._assignment = assignment_of(task.plan, task.device)
        folder = Path(task.model_folder)
        graph = parse_graph((folder / "graph.json").read_bytes(), "graph.json")
        config = saved_configuration(folder / "model")
        module = skeleton(config, task.model)
        tied = tied_parameters_by_unit(graph, module)
        self._parameter_order = {name: index for index, (name, _) in enumerate(module.named_parameters())}
        self._segment = SegmentRunner(graph, self._assignment.segment.units, module, self._device)
        self._segment.load(
            WeightReader(base_skeleton(config, task.model), source_folder(task.model), folder / INIT_WEIGHTS)
        )
        self._segment.train()
        self._optimizer = NamedOptimizer(self._segment.parameters, task.training)
        self._throttle = CpuThrottle(task.cores)
        if task.state is not None:
            restore_segment(Path(task.state), self._segment, self._optimizer)
        self._state = CommittedState(self._segment, self._optimizer, task.first_round)
        self._tied = tied_holders(tied, self._assignment.lane)
        self._sent_before: dict[str, int] = {}
        self._saved: list[int] = []
        context = RoundContext(
            segment_runner=self._segment,
            exchange=exchange,
            batches=Batches(Path(task.data_folder), task.plan, task.seed, self._device),
            optimizer=self._optimizer,
            throttle=self._throttle,
            tied=self._tied,
        )
        self._rounds = RoundRunner(task.plan, self._assignment, context, task.seed)

    def run(self) -> None:
        """Run rounds until the coordinator says stop."""
        threading.Thread(target=self._save_on_request, name="save", daemon=True).start()
        self._exchange.send_control("loaded", {})
        self._exchange.recv_control("begin")
        self._beat.doing = COMPUTING
        for round in range(self._task.first_round, self._task.training.rounds):
            work = self._rounds.run(round)
            if not math.isfinite(work.loss):
                raise Refused(
                    f"training: round {round} has a loss of {work.loss}; choose a smaller learning_rate, or clip_norm"
                )
            self._report(round, work)
            commit = self._wait_for_commit(round)
            while len(self._saved) > KEPT_CHECKPOINTS:  # the newest is complete: it was collected before this commit
                delete_checkpoint(checkpoint_folder(Path(self._task.work), self._saved.pop(0)))
            with self._throttle.throttled(), self._state.advance():
                self._rounds.commit(round, float(commit["scale"]))
            if commit["checkpoint"] and self._assignment.is_leader:
                self._save(round + 1)
        self._exchange.recv_control("nothing but stop")

    def _report(self, round: int, work: RoundResult) -> None:
        """Report the round's loss, gradient norms, memory, bytes and timeline rows to the coordinator."""
        with self._throttle.throttled():
            norms = gradient_norms(self._optimizer.gradients(), round)
        header = {
            "round": round,
            "loss": work.loss,
            "norms": pack_norms(self._norms_to_report(norms), self._parameter_order),
            "peak_memory_bytes": peak_memory_bytes(self._device),
            "sent_bytes": self._bytes_sent(),
        }
        self._exchange.send_control("ready", header, encode_rows(work.rows))

    def _save(self, done: int) -> None:
        """Write this segment's shard of the checkpoint after `done` rounds and report its digest."""
        self._beat.doing = SAVING
        self._write(done)
        self._beat.doing = COMPUTING
        self._saved.append(done)

    def _write(self, done: int) -> None:
        folder = checkpoint_folder(Path(self._task.work), done)
        file, digest = self._state.write(folder, f"segment-{self._assignment.index}", done)
        self._exchange.send_control("saved", {"round": done, "file": file, **json_io.dump(digest)})

    def _save_on_request(self) -> None:
        """Write the state whenever the coordinator asks for it, whatever the running round waits for or computes."""
        while (received := self._endpoint.receive_urgent()) is not None:
            if received.sender != COORDINATOR:
                continue
            try:
                self._write(int(received.message.header["round"]))
            except (FleetuneError, OSError, RuntimeError, LookupError, TypeError, ValueError) as error:
                why = str(error) if isinstance(error, FleetuneError) else f"{type(error).__name__}: {error}"
                self._exchange.send_control("failed", {"why": why[:2000], "exit_code": TryAgain.exit_code})

    def _wait_for_commit(self, round: int) -> dict[str, Any]:
        """Wait for the commit of this round, skipping older ones, which were applied already."""
        while True:
            header = self._exchange.recv_control("commit").header
            if header["round"] == round:
                return header

    def _norms_to_report(self, norms: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the norms that this device reports for clipping.

        The leader reports for its group, and the first segment that holds a shared weight reports that weight.
        """
        if self._task.training.clip_norm is None or not self._assignment.is_leader:
            return {}
        mine = {name for name in norms if self._tied.get(name, (self._assignment.index,))[0] == self._assignment.index}
        return {name: norm for name, norm in norms.items() if name in mine}

    def _bytes_sent(self) -> dict[str, int]:
        """Return the bytes sent to each worker since the last call."""
        now = {peer: n for peer, n in self._endpoint.sent_bytes.items() if peer != COORDINATOR}
        delta = {peer: n - self._sent_before.get(peer, 0) for peer, n in now.items()}
        self._sent_before = now
        return {peer: n for peer, n in delta.items() if n}


def _exit_abandoned(exchange: Exchange, why: str) -> None:
    """End this process at once; a half written shard does not count as a checkpoint."""
    print(why, file=sys.stderr, flush=True)  # noqa: T201 - the worker's log
    exchange.send_control("failed", {"why": why, "exit_code": TryAgain.exit_code})
    time.sleep(EXIT_DELAY_S)  # the coordinator may still receive messages that it cannot answer
    os._exit(TryAgain.exit_code)


def _note(sentence: str) -> None:
    print(json.dumps({"refused": sentence}), file=sys.stderr, flush=True)  # noqa: T201 - the worker's log


if __name__ == "__main__":
    sys.exit(main())
