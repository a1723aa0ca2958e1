"""One device's process: `python -m fleetune.training.worker --task FILE`, with its keys on the first line of stdin.

The worker's messages and the coordinator's answers:

    hello -> welcome          addresses of the other workers; from now on a beat every half second -> heard
    loaded                    only from a worker that was started again: the others trained on until now
             abort a          attempt a begins: the running round ends, and the state is as before it
    aborted a -> move a       what is held here -> under which plan to hold what (`migration.Migration`)
    moved a -> drop_old a     all that the plan wants here is here -> it is made live, and all else is freed
               start a r      round r runs
    ready a r -> commit a r   gradients are complete; parameters take their step; the next round begins
                (checkpoint)  -> saved: written by a thread, beside the next round
    save r                    -> saved: the state after r rounds, from a thread beside the running round
    stop                      ends the process, whatever it waits for

What is prepared may be committed until the state moves on: a `move` may carry the commit of it.
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
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from fleetune import filesystem
from fleetune.contracts import json_io
from fleetune.contracts.head_scores import ReportedScores
from fleetune.contracts.mixed_precision import FP16
from fleetune.errors import FleetuneError, Refused, TryAgain
from fleetune.exposed_folders import remove
from fleetune.launching.process_limits import OUT_OF_MEMORY_EXIT_CODE, is_out_of_memory
from fleetune.links.authentication import KeyPair
from fleetune.links.endpoint import Endpoint, EndpointFactory, Listen
from fleetune.links.peer import Tap
from fleetune.models.device_memory import PeakMemory, compute_on
from fleetune.recovery.holdings import Attempt, Version
from fleetune.training.checkpoints import SAVE, saving_folder
from fleetune.training.energy import energy_meter
from fleetune.training.exchange import Aborted, BrokenOff, Exchange, Stopped, attempt_of
from fleetune.training.gradients import UNSCALED
from fleetune.training.liveness import COMPUTING, SAVING, Heartbeat
from fleetune.training.measurements import encode_rows
from fleetune.training.migration import Migration, describe_version, parse_version
from fleetune.training.rounds import RoundResult
from fleetune.training.running_plan import RunningPlan
from fleetune.training.task import COORDINATOR, WorkerKeys, WorkerTask
from fleetune.training.worker_holdings import WorkerHoldings, due
from fleetune.training.worker_links import Peer, WorkerLinks
from fleetune.training.worker_state import CommittedState

EXIT_DELAY_S = 0.5
DEVICE_FAULT_EXIT_CODE = 70


def main(tap: Tap | None = None, exchange: Callable[[Endpoint, str, torch.device], Exchange] = Exchange) -> int:
    """Run one worker; return the exit code, 0 if the coordinator said stop. tap: of `Endpoint`. exchange: makes it."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--task", type=Path, required=True)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a machine that shuts down: the coordinator lets it write first
    task = json_io.read(WorkerTask, arguments.parse_args().task)
    secrets = json_io.parse(WorkerKeys, sys.stdin.buffer.readline(), "keys on stdin")
    torch.set_num_threads(task.threads)
    return serve(task, secrets, Endpoint, exchange, _exit_abandoned, tap)


def serve(
    task: WorkerTask,
    secrets: WorkerKeys,
    make_endpoint: EndpointFactory,
    make_exchange: Callable[[Endpoint, str, torch.device], Exchange],
    abandoned: Callable[[Exchange, str], None],
    tap: Tap | None = None,
) -> int:
    """Run a worker in this thread; return its exit code. abandoned: told, in a thread, why nobody needs it any more."""
    keys = KeyPair(public=secrets.public.encode(), secret=secrets.secret.encode())
    allowed = {n: key.encode() for n, key in {**secrets.peers, COORDINATOR: secrets.coordinator_public}.items()}
    listen = Listen(bind=task.bind, address=task.address, delays_s=task.delays_s, urgent=SAVE)
    with make_endpoint(task.device, keys, allowed, run=task.run, listen=listen, note=_note) as endpoint:
        endpoint.tap = tap
        endpoint.connect(COORDINATOR, secrets.coordinator_address, allowed[COORDINATOR])
        exchange = make_exchange(endpoint, COORDINATOR, torch.device(task.accelerator))
        return _obey(task, endpoint, allowed, exchange, lambda why: abandoned(exchange, why))


def _obey(
    task: WorkerTask,
    endpoint: Endpoint,
    allowed: dict[str, bytes],
    exchange: Exchange,
    abandoned: Callable[[str], None],
) -> int:
    beat = Heartbeat(exchange, endpoint, COORDINATOR, abandoned)
    try:
        exchange.send_control("hello", {"address": endpoint.address, "pid": os.getpid()})
        with beat.running():
            addresses = exchange.recv_control("welcome").header["addresses"]
            others = {name: key for name, key in allowed.items() if name != COORDINATOR}
            peers = {name: Peer(str(addresses.get(name, "")), key) for name, key in others.items()}
            _Worker(task, WorkerLinks(exchange, endpoint, beat, peers)).run()
        return 0
    except Stopped:
        exchange.close()
        return 0
    except Exception as error:
        with suppress(OSError):  # the log's disk may be full
            print(traceback.format_exc(), file=sys.stderr, flush=True)  # noqa: T201 - the worker's log
        if is_out_of_memory(error):
            return OUT_OF_MEMORY_EXIT_CODE  # the coordinator reports the device's memory
        if isinstance(error, torch.AcceleratorError):
            return DEVICE_FAULT_EXIT_CODE  # a loss: the others can go on without it
        ours = error if isinstance(error, FleetuneError) else None
        code = ours.exit_code if ours else TryAgain.exit_code
        known = ours or filesystem.disk_error(error, filesystem.folders(task.work))
        why = str(known or f"{type(error).__name__}: {error}")
        exchange.send_control("failed", {"why": why[:2000], "trace": traceback.format_exc()[-4000:], "exit_code": code})
        return code


class _Worker:
    """Holds what the plan wants on its device, and obeys the coordinator."""

    def __init__(self, task: WorkerTask, links: WorkerLinks) -> None:
        self._task, self._links = task, links
        self._exchange, self._endpoint, self._beat = links.exchange, links.endpoint, links.beat
        device = torch.device(task.accelerator)
        compute_on(device, task.memory_bytes)
        self._memory = PeakMemory(device)
        self._held = WorkerHoldings(task, links)
        self._energy = energy_meter(task.accelerator)
        self._saved = set[int]()
        self._writer: threading.Thread | None = None
        """Writes the state of the last commit beside the round that follows it."""
        self._writing = threading.Lock()
        """Held while a checkpoint is written that was asked for, and while an attempt begins."""
        self._obeys: Mapping[str, Callable[[Mapping[str, Any]], None]] = {
            "move": self._move,
            "drop_old": self._drop_old,
            "start": self._start,
            "commit": self._commit,
            "release": self._release,
        }

    def run(self) -> None:
        """Obey until the coordinator says stop."""
        threading.Thread(target=self._save_on_request, name="save", daemon=True).start()
        if self._task.returns:
            self._held.load_ahead()
            self._exchange.send_control("loaded", {})
        else:
            self._held.describe_program()  # while the coordinator reads the model too
        try:
            while True:
                try:
                    message = self._exchange.recv_control(*self._obeys)
                    if attempt_of(message.header) == self._exchange.attempt:
                        self._obeys[message.kind](message.header)
                except Aborted as aborted:
                    self._await_writer()  # what follows may ask for the same files, or free what is written
                    with self._no_checkpoint_being_written():
                        self._held.enter(aborted.attempt)
        finally:
            self._await_writer()

    # ---------------------------------------------------------------- recovery

    def _move(self, header: Mapping[str, Any]) -> None:
        self._held.move(json_io.load(Migration, header["order"], "migration"))

    def _drop_old(self, header: Mapping[str, Any]) -> None:
        self._held.drop_old(parse_version(header["version"]))

    def _release(self, header: Mapping[str, Any]) -> None:
        self._held.release(parse_version(header["version"]))

    # ------------------------------------------------------------------ rounds

    def _start(self, header: Mapping[str, Any]) -> None:
        """Run a round, if all before it are done here."""
        running = self._held.running
        if self._held.settled and running is not None:
            if header["round"] != running.state.done:
                done = running.state.done
                raise TryAgain(f"was told to begin round {header['round']} with {done} rounds done")
            self._run_round(running, header)

    def _run_round(self, running: RunningPlan, told: Mapping[str, Any]) -> None:
        """Run one round, as the coordinator has told, up to its report."""
        round, loss_scale = told["round"], float(told.get("loss_scale", UNSCALED))
        work = running.rounds.run(round, loss_scale, told.get("rested", {}))
        work.rows[:0] = self._held.averaged
        bad = next((loss for loss in work.losses.values() if not math.isfinite(loss)), None)
        if bad is not None:
            other = ", or mixed_precision bf16" if self._task.model.mixed_precision == FP16 else ""
            why = f"round {round} has a loss of {bad}; choose a smaller learning_rate, or clip_norm{other}"
            raise Refused(f"training: {why}")
        self._report(running, round, work, loss_scale)
        self._held.prepared = (round, self._exchange.attempt)

    def _commit(self, commit: Mapping[str, Any]) -> None:
        """Apply the prepared round if this is its commit; save it and go on, as it says."""
        held = self._held
        if not held.settled or due(commit) != held.prepared:
            return
        self._await_writer()  # it writes the state that moves now
        running = held.apply(commit)
        for done in outdated(self._saved, commit["kept"], commit["round"]):
            remove(self._saving_folder(done))
            self._saved.remove(done)
        if commit["checkpoint"] and running.state.is_saved_here:
            self._save_beside(running.state)
        if commit["backup"]:
            held.back_up(running)
        held.end_backup(running)
        if commit["starts_next"]:
            self._run_round(running, {**commit, "round": commit["round"] + 1})

    def _report(self, running: RunningPlan, round: int, work: RoundResult, loss_scale: float) -> None:
        """Report the round's losses, gradient norms, memory, bytes and timeline rows to the coordinator."""
        norms, overflowed = running.norms(round)
        header = {
            "round": round,
            "attempt": self._exchange.attempt,
            "losses": work.losses,
            "norms": norms,
            "loss_scale": loss_scale,
            "overflowed": overflowed,
            "peak_memory_bytes": self._memory.bytes(),
            "sent_bytes": self._links.round_bytes(),
            "energy_j": self._energy.take(),
        }
        scores = [json_io.text(ReportedScores(heads=tuple(work.scores))).encode()] if work.scores else []
        self._exchange.send_control("ready", header, encode_rows(work.rows), *scores)

    def _save_beside(self, state: CommittedState) -> None:
        """Write this device's shards of the checkpoint of its state, beside the next round, and report their digests.

        A round changes nothing of what is written, so this takes no memory, and no time of a round that is longer.
        """
        what = (state, state.done, self._exchange.attempt)
        self._writer = threading.Thread(target=self._write_or_fail, args=what, name="checkpoint", daemon=True)
        self._writer.start()

    def _await_writer(self) -> None:
        """Wait for the end of what is being written."""
        if self._writer is not None:
            self._beat.doing = SAVING
            self._writer.join()
            self._beat.doing, self._writer = COMPUTING, None

    @contextmanager
    def _no_checkpoint_being_written(self) -> Iterator[None]:
        """Wait for the end of one that was asked for, and hold the next one up."""
        self._beat.doing = SAVING
        with self._writing:
            self._beat.doing = COMPUTING
            yield

    def _write_or_fail(self, state: CommittedState, done: int, attempt: Attempt) -> None:
        """Write in a thread; an error is reported, and ends the training."""
        try:
            self._write(state, done, attempt)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Report the error of a thread that writes."""
        with suppress(OSError):  # the log's disk may be full
            print("".join(traceback.format_exception(error)), file=sys.stderr, flush=True)  # noqa: T201 - the worker's log
        if is_out_of_memory(error):
            os._exit(OUT_OF_MEMORY_EXIT_CODE)  # the coordinator reports the device's memory
        if isinstance(error, torch.AcceleratorError):
            os._exit(DEVICE_FAULT_EXIT_CODE)
        why = str(error) if isinstance(error, FleetuneError) else f"{type(error).__name__}: {error}"
        self._exchange.send_control("failed", {"why": why[:2000], "exit_code": TryAgain.exit_code})

    def _write(self, state: CommittedState, done: int, attempt: Attempt) -> None:
        """Write the state of so many rounds. attempt: the one that asked for it, which may be newer than the state."""
        written = state.write(self._saving_folder(done), done)
        shards = [{"file": shard.file, **json_io.dump(shard.digest)} for shard in written]
        version = describe_version(Version(done, state.version.attempt))
        self._saved.add(done)
        self._exchange.send_control("saved", {"attempt": attempt, "version": version, "shards": shards})

    def _saving_folder(self, done: int) -> Path:
        return saving_folder(Path(self._task.work), self._task.device, done)

    def _save_on_request(self) -> None:
        """Write the state whenever the coordinator asks for it, whatever the running round waits for or computes."""
        while (received := self._endpoint.receive_urgent()) is not None:
            if received.sender != COORDINATOR:
                continue
            try:
                running, attempt = self._held.await_settled(), attempt_of(received.message.header)
                done = int(received.message.header["round"])
                assert running is not None, "a device that saves is in the plan"
                running.state.await_rounds(done)  # without the lock: an abort may lead to the commit
                with self._writing:
                    if attempt != self._exchange.attempt:
                        continue  # a loss came between
                    self._write(running.state, done, attempt)
            except BrokenOff:
                continue
            except Exception as error:
                self._fail(error)


def outdated(saved: Collection[int], kept: Collection[int], round: int) -> set[int]:
    """Return the checkpoints that a worker deletes with the commit of a round: by the rounds that are in them.

    kept: those that the coordinator needed when it sent the commit. One of the state after the commit may have been
    asked for since, and its request overtakes the commit: `saved` may have it already. One of the state before it may
    still be written by others, which wait for that before they apply this commit, in a folder that all share.
    """
    return {done for done in set(saved) - set(kept) if done < round}


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
