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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fleetune import filesystem
from fleetune.contracts import json_io
from fleetune.contracts.metrics import TimelineRow
from fleetune.errors import FleetuneError, Refused, TryAgain
from fleetune.launching.process_limits import OUT_OF_MEMORY_EXIT_CODE, CpuThrottle, is_out_of_memory
from fleetune.links.authentication import KeyPair
from fleetune.links.endpoint import Endpoint, Listen
from fleetune.links.peer import Tap
from fleetune.models.process_memory import peak_memory_bytes
from fleetune.program import DeviceProgram
from fleetune.training.checkpoints import SAVE, checkpoint_folder, delete_checkpoint, read_residuals
from fleetune.training.committed_state import CommittedState
from fleetune.training.exchange import Exchange, Stopped
from fleetune.training.gradients import gradient_norms, pack_norms
from fleetune.training.liveness import COMPUTING, SAVING, Heartbeat
from fleetune.training.measurements import encode_rows
from fleetune.training.moves import Moves, moved
from fleetune.training.roles import averages_after, keeps_residuals
from fleetune.training.rounds import RoundContext, RoundResult, RoundRunner
from fleetune.training.task import COORDINATOR, WorkerKeys, WorkerTask
from fleetune.training.worker_state import ModelDescription, load_state

EXIT_DELAY_S = 0.5
KEPT_CHECKPOINTS = 2
"""Number of checkpoints that stay on a device."""


def main(tap: Tap | None = None) -> int:
    """Run one worker; return the exit code, 0 if the coordinator said stop. tap: see `Endpoint.tap`."""
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
        endpoint.tap = tap
        endpoint.connect(COORDINATOR, secrets.coordinator_address, allowed[COORDINATOR])
        return _serve(task, endpoint, allowed)


def _serve(task: WorkerTask, endpoint: Endpoint, allowed: dict[str, bytes]) -> int:
    exchange = Exchange(endpoint, COORDINATOR, torch.device(task.accelerator), task.plan.revision)
    beat = Heartbeat(exchange, endpoint, COORDINATOR, lambda why: _exit_abandoned(exchange, why))
    try:
        exchange.send_control("hello", {"address": endpoint.address, "pid": os.getpid()})
        with beat.running():
            described = ModelDescription(task)
            program = described.program(task.plan)
            addresses = exchange.recv_control("welcome").header["addresses"]
            for peer in program.peers:
                endpoint.connect(peer, addresses[peer], allowed[peer])
            for peer, bytes_per_s in task.paced_bytes_per_s.items():
                exchange.pace(peer, bytes_per_s)
            _Worker(task, _Links(exchange, endpoint, beat), described, program).run()
        return 0
    except Stopped:
        exchange.close()
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


@dataclass(frozen=True, slots=True)
class _Links:
    """The worker's connections."""

    exchange: Exchange
    endpoint: Endpoint
    beat: Heartbeat


class _Worker:
    """Holds the device's seats, and runs the loop over rounds."""

    def __init__(self, task: WorkerTask, links: _Links, described: ModelDescription, program: DeviceProgram) -> None:
        self._task, self._exchange, self._endpoint, self._beat = task, links.exchange, links.endpoint, links.beat
        self._device = torch.device(task.accelerator)
        self._parameter_order = {name: index for index, name in enumerate(described.trainable)}
        self._held = load_state(task, described)
        self._throttle = CpuThrottle(task.cores)
        self._sent_before: dict[str, int] = {}
        self._saved: list[int] = []
        self._described = described
        self._context = RoundContext(
            plan=task.plan,
            seed=task.seed,
            seats=self._held.seats,
            exchange=links.exchange,
            throttle=self._throttle,
            collector=self._held.collector,
            averages=self._held.averages,
            averager=self._held.averager,
        )
        self._rounds = RoundRunner(program, self._context)
        fed = {task.device: self._context.feedback} if keeps_residuals(task.plan, task.device) else {}
        if fed and task.state is not None:
            self._context.feedback.load(read_residuals(Path(task.state), task.device))
        self._state = CommittedState(self._held.shards(task.plan), task.first_round, fed)

    def run(self) -> None:
        """Run rounds until the coordinator says stop."""
        threading.Thread(target=self._save_on_request, name="save", daemon=True).start()
        self._exchange.send_control("loaded", {})
        self._exchange.recv_control("begin")
        self._beat.doing = COMPUTING
        averaged: list[TimelineRow] = []
        for round in range(self._task.first_round, self._task.training.rounds):
            work = self._rounds.run(round)
            work.rows[:0] = averaged
            bad = next((loss for loss in work.losses.values() if not math.isfinite(loss)), None)
            if bad is not None:
                raise Refused(
                    f"training: round {round} has a loss of {bad}; choose a smaller learning_rate, or clip_norm"
                )
            self._report(round, work)
            commit = self._wait_for_commit(round)
            while len(self._saved) > KEPT_CHECKPOINTS:  # the newest is complete: it was collected before this commit
                delete_checkpoint(checkpoint_folder(Path(self._task.work), self._saved.pop(0)))
            with self._throttle.throttled(), self._state.advance():
                self._rounds.commit(round, {lane: float(scale) for lane, scale in commit["scales"].items()})
                averages = averages_after(self._task.plan, round, self._task.training.rounds)
                averaged = self._rounds.average() if averages else []
                if moves := commit.get("moves"):
                    self._deal({lane: tuple(units) for lane, units in moves.items()})
            self._bytes_sent()  # an average's bytes are in its rows, not in the next round's
            if commit["checkpoint"] and self._state.is_saved_here:
                self._save(round + 1)
        self._exchange.recv_control("nothing but stop")

    def _deal(self, moves: Moves) -> None:
        """Let lanes train other units from the next round on."""
        plan = moved(self._context.plan, moves)
        self._held.deal(plan, self._described)
        self._context = replace(self._context, plan=plan)
        self._rounds = RoundRunner(self._described.program(plan), self._context)

    def _report(self, round: int, work: RoundResult) -> None:
        """Report the round's losses, gradient norms, memory, bytes and timeline rows to the coordinator."""
        header = {
            "round": round,
            "losses": work.losses,
            "norms": self._norms(round),
            "peak_memory_bytes": peak_memory_bytes(self._device),
            "sent_bytes": self._bytes_sent(),
        }
        self._exchange.send_control("ready", header, encode_rows(work.rows))

    def _norms(self, round: int) -> dict[str, dict[str, Any]]:
        """Return the packed norms of all gradients that this device steps, by lane; Refused if one is not finite.

        Only those that clipping needs are packed: each group's leader reports, and of a weight that several segments
        share the first of them. A collector reports what it has summed, as the first lane's.
        """
        found: dict[str, dict[str, torch.Tensor]] = {}
        with self._throttle.throttled():
            for each in self._held.seats.values():
                norms = gradient_norms(each.optimizer.gradients(), round)
                if each.seat.is_leader and not self._task.plan.collector:
                    mine = {
                        n: norm
                        for n, norm in norms.items()
                        if each.tied.get(n, (each.seat.index,))[0] == each.seat.index
                    }
                    found.setdefault(each.seat.lane.name, {}).update(mine)
            if self._held.collector is not None:
                gradients = self._held.collector.optimizer.gradients()
                found[self._task.plan.lanes[0].name] = gradient_norms(gradients, round)
        if self._task.training.clip_norm is None:
            return {}
        return {lane: pack_norms(norms, self._parameter_order) for lane, norms in found.items()}

    def _save(self, done: int) -> None:
        """Write this device's shards of the checkpoint after `done` rounds and report their digests."""
        self._beat.doing = SAVING
        self._write(done)
        self._beat.doing = COMPUTING
        self._saved.append(done)

    def _write(self, done: int) -> None:
        written = self._state.write(checkpoint_folder(Path(self._task.work), done), done)
        shards = [{"file": shard.file, **json_io.dump(shard.digest)} for shard in written]
        self._exchange.send_control("saved", {"round": done, "shards": shards})

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
