"""A training that loses a device or its coordinator resumes from the newest checkpoint with the same result."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fleetune.contracts.metrics import RoundMetrics
from fleetune.contracts.plan import PlanResult
from fleetune.contracts.task import Progress
from fleetune.contracts.training_request import TrainingRequest
from fleetune.errors import FleetuneError, TryAgain
from fleetune.launching import Command, Job, ProcessLauncher
from fleetune.training.checkpoints import FileDigest, checkpoint_folder, mark_complete, newest_complete
from fleetune.training.commit_log import (
    CommitLog,
    adopt_newest,
    read_commits,
    read_plan_start,
    record_plan_start,
    resume,
)
from fleetune.training.task import TrainingTask
from tests.clock import fleets
from tests.training.model_families import BY_NAME, data_request, model_request
from tests.training.runs import MICRO_BATCH, MICRO_BATCHES, Prepared, final_state, plan, prepared, run_plan

TRAINING = TrainingRequest(
    rounds=9, batch_samples=24, micro_batch_samples=8, learning_rate=1e-3, schedule="cosine", checkpoint_every_rounds=3
)


class Recording:
    """A launcher that records its jobs, so that a test can kill them."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def start(self, command: Command) -> Job:
        job = ProcessLauncher().start(command)
        self.jobs.append(job)
        return job


def bert(tmp_path: Path) -> Prepared:
    return prepared(model_request(BY_NAME["bert"], dropout=True), data_request(BY_NAME["bert"], tmp_path), tmp_path)


def killing(launcher: Recording, round: int, *devices: int, number: int = signal.SIGKILL) -> Progress:
    """Return a progress listener that sends a signal to workers when that many rounds are committed for the first time.

    A checkpoint is written beside the next round, so one of round r is there for certain once r + 2 are committed.

    devices: their numbers; none: all.
    """
    rounds_left = [round]

    def listen(what: str, done: float, total: float, unit: str = "", detail: str = "") -> None:
        if done / (MICRO_BATCH * MICRO_BATCHES) in rounds_left:
            rounds_left.clear()
            for device in devices or range(len(launcher.jobs)):
                os.kill(launcher.jobs[device].pid, number)

    return listen


@pytest.mark.slow
def test_a_killed_device_is_named_and_the_next_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    """kill -9 of one worker after round 5 exits with 75 and its name; resumed from 3, the weights agree bitwise."""
    ready = bert(tmp_path)
    made = plan(ready.units, [3], [[8], [8]])
    run_plan(ready, made, TRAINING, tmp_path / "whole")
    launcher = Recording()
    with pytest.raises(TryAgain, match=r"device d1 .*killed by signal 9") as caught:
        run_plan(ready, made, TRAINING, tmp_path / "cut", launcher=launcher, progress=killing(launcher, 5, 1))
    assert caught.value.exit_code == 75
    assert all(job.poll() is not None for job in launcher.jobs)
    said: list[str] = []
    metrics = run_plan(ready, made, TRAINING, tmp_path / "cut", note=said.append)
    assert metrics.resumed_from_round == 3
    assert said == ["goes on from round 3 of 9, by an earlier attempt's checkpoint"]
    assert [r.round for r in metrics.rounds] == list(range(9))
    whole, again = final_state(tmp_path / "whole"), final_state(tmp_path / "cut")
    assert whole.keys() == again.keys() and all(torch.equal(whole[k], again[k]) for k in whole)


@pytest.mark.slow
def test_a_frozen_device_is_named_and_not_one_that_waits_for_it(tmp_path: Path) -> None:
    """Bug: the first device of the list was blamed, after 120 s. SIGSTOP of the second of three names the second."""
    ready = bert(tmp_path)
    launcher = Recording()
    three = plan(ready.units, [1, 3], [[8], [8], [8]])
    with pytest.raises(
        TryAgain, match=r"^device d1 is silent for [\d.]+ s and gave no sign of life when asked; run again to go on"
    ) as caught:
        frozen = killing(launcher, 5, 1, number=signal.SIGSTOP)
        run_plan(ready, three, TRAINING, tmp_path / "cut", launcher=launcher, progress=frozen)
    assert caught.value.exit_code == 75
    assert all(job.poll() is not None for job in launcher.jobs)
    assert run_plan(ready, three, TRAINING, tmp_path / "cut").resumed_from_round == 3


@pytest.mark.slow
def test_a_checkpoint_resumes_on_another_plan(tmp_path: Path) -> None:
    """Begun on two segments and ended on one device, the weights agree bitwise, since state is saved by name."""
    ready = bert(tmp_path)
    single = plan(ready.units, [], [[8]])
    run_plan(ready, single, TRAINING, tmp_path / "whole")
    launcher = Recording()
    with pytest.raises(TryAgain):
        two = plan(ready.units, [2], [[8], [8]])
        run_plan(ready, two, TRAINING, tmp_path / "cut", launcher=launcher, progress=killing(launcher, 8, 0))
    metrics = run_plan(ready, single, TRAINING, tmp_path / "cut")
    assert metrics.resumed_from_round == 6
    whole, again = final_state(tmp_path / "whole"), final_state(tmp_path / "cut")
    assert all(torch.equal(whole[k], again[k]) for k in whole)


@pytest.mark.slow
def test_the_checkpoint_of_another_plan_is_adopted(tmp_path: Path) -> None:
    """Bug: a fleet that was measured anew was planned anew and began at round 0.

    The newest checkpoint of the other plan's attempt is copied, the weights agree bitwise, and the metrics tell the
    plans apart.
    """
    ready = bert(tmp_path)
    single = plan(ready.units, [], [[8]])
    run_plan(ready, single, TRAINING, tmp_path / "whole")
    launcher = Recording()
    with pytest.raises(TryAgain):
        two = plan(ready.units, [2], [[8], [8]])
        run_plan(ready, two, TRAINING, tmp_path / "cut", launcher=launcher, progress=killing(launcher, 8, 0))
    said: list[str] = []
    before = tmp_path / "cut" / "work"
    metrics = run_plan(
        ready, single, TRAINING, tmp_path / "new", earlier=(tmp_path / "none", before), resumed=said.append
    )
    assert said == ["goes on from round 6 of 9, by another plan's checkpoint"]
    assert (metrics.resumed_from_round, metrics.plan_from_round) == (6, 6)
    assert [r.round for r in metrics.rounds] == list(range(9))
    assert metrics.median_round_s == sorted(r.round_s for r in metrics.rounds[6:])[1]
    whole, again = final_state(tmp_path / "whole"), final_state(tmp_path / "new")
    assert all(torch.equal(whole[k], again[k]) for k in whole)
    assert newest_complete(before, said.append) is not None and len(said) == 1, "nothing of it was changed"
    events = (tmp_path / "new" / "output" / "metrics" / "events.jsonl").read_text()
    assert events.count('"started"') == 2 and events.count('"lost"') == 1 and events.count('"ended"') == 1


@pytest.mark.slow
def test_rounds_before_a_new_measurement_of_the_links_stay_out_of_the_median(tmp_path: Path) -> None:
    """Bug: a training that was killed, and resumed under the same stage key after the links had been measured anew,
    compared the new forecast with the median over the rounds of both fleets, without a note.
    """
    ready = bert(tmp_path)
    single = plan(ready.units, [], [[8]])
    two = plan(ready.units, [2], [[8], [8]])
    run_plan(ready, single, TRAINING, tmp_path / "whole")
    launcher = Recording()
    with pytest.raises(TryAgain):
        run_plan(ready, two, TRAINING, tmp_path / "cut", launcher=launcher, progress=killing(launcher, 8, 0))
    said: list[str] = []
    metrics = run_plan(ready, two, TRAINING, tmp_path / "cut", latency_s=2e-4, note=said.append)
    assert said == ["goes on from round 6 of 9, by an earlier attempt's checkpoint"], "the plan is the same"
    assert (metrics.resumed_from_round, metrics.plan_from_round) == (6, 6)
    assert metrics.median_round_s == sorted(r.round_s for r in metrics.rounds[6:])[1]
    whole, again = final_state(tmp_path / "whole"), final_state(tmp_path / "cut")
    assert all(torch.equal(whole[k], again[k]) for k in whole)


@pytest.mark.slow
@pytest.mark.parametrize("log", [None, b"", bytes(300), b"\n"], ids=["missing", "emptied", "zeroed", "a line"])
def test_a_lost_log_and_a_damaged_shard_lose_neither_weights_nor_metrics(log: bytes | None, tmp_path: Path) -> None:
    """Bug: training went on with one flipped bit, and a lost commit log ended in an IndexError after all training.

    Both are reported before the first round, and the next attempt ends like an uninterrupted one.
    """
    ready = bert(tmp_path)
    single = plan(ready.units, [], [[8]])
    run_plan(ready, single, TRAINING, tmp_path / "whole")
    launcher = Recording()
    with pytest.raises(TryAgain):
        run_plan(ready, single, TRAINING, tmp_path / "cut", launcher=launcher, progress=killing(launcher, 8, 0))
    work = tmp_path / "cut" / "work"
    shard = work / "checkpoints" / "round-000006" / "segment-0.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1000] ^= 4
    shard.write_bytes(content)
    (work / "commits.jsonl").unlink()
    if log is not None:
        (work / "commits.jsonl").write_bytes(log)
    said: list[str] = []
    metrics = run_plan(ready, single, TRAINING, tmp_path / "cut", note=said.append)
    assert said == [
        f"the checkpoint of round 6 is not used ({shard} is damaged: its content differs from what was written)",
        "goes on from round 3 of 9, by an earlier attempt's checkpoint",
        f"{work / 'commits.jsonl'} has lost some of 3 rounds: they are taken from the checkpoint",
    ]
    assert metrics.resumed_from_round == 3 and [r.round for r in metrics.rounds] == list(range(9))
    whole, again = final_state(tmp_path / "whole"), final_state(tmp_path / "cut")
    assert all(torch.equal(whole[k], again[k]) for k in whole)


@pytest.mark.slow
def test_an_attempt_that_has_all_rounds_writes_all_metrics(tmp_path: Path) -> None:
    """Killed between the last checkpoint and its artifacts, with the log lost too, nothing is trained twice, and the
    metrics are those of the checkpoint.
    """
    ready = bert(tmp_path)
    single = plan(ready.units, [], [[8]])
    first = run_plan(ready, single, TRAINING, tmp_path)
    (tmp_path / "work" / "commits.jsonl").write_bytes(b"")
    said: list[str] = []
    again = run_plan(ready, single, TRAINING, tmp_path, note=said.append)
    assert said[0] == "all rounds are done, by an earlier attempt's checkpoint"
    assert again.rounds == first.rounds and again.resumed_from_round == 9 and again.timeline == ()


@pytest.mark.slow
def test_a_round_is_in_the_log_only_when_every_device_reported_it(tmp_path: Path) -> None:
    """After a device is lost the log holds exactly the rounds that were reported as committed."""
    ready = bert(tmp_path)
    launcher = Recording()
    told: list[float] = []

    def listen(what: str, done: float, total: float, unit: str = "", detail: str = "") -> None:
        told.append(done)
        killing(launcher, 4, 1)(what, done, total, unit)

    with pytest.raises(TryAgain):
        run_plan(ready, plan(ready.units, [2], [[3, 5], [8]]), TRAINING, tmp_path, launcher=launcher, progress=listen)
    rounds = [r.round for r in read_commits(tmp_path / "work" / "commits.jsonl")]
    assert len(rounds) == len(told) == 4


@pytest.mark.slow
def test_a_workers_error_reaches_the_coordinator_in_a_sentence(tmp_path: Path) -> None:
    """A worker's error reaches the coordinator as a sentence with the device's name and its log's path, not as a
    traceback.
    """
    ready = bert(tmp_path)
    (ready.folders.model / "start.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(FleetuneError, match=r"device d0 failed: .*start\.safetensors: not a readable") as caught:
        run_plan(ready, plan(ready.units, [], [[8]]), TRAINING, tmp_path)
    assert "Traceback" not in str(caught.value) and caught.value.exit_code == 64


@pytest.mark.slow
def test_keys_are_in_no_file_or_argument(tmp_path: Path) -> None:
    """Keys of the run are neither in task files, logs, events and artifacts nor in the workers' command lines."""
    ready = bert(tmp_path)
    secrets: list[bytes] = []
    seen: list[bytes] = []

    class Spying(Recording):
        def start(self, command: Command) -> Job:
            secrets.extend(part for part in command.first_line.split(b'"') if len(part) == 40)
            job = super().start(command)
            seen.append(Path(f"/proc/{job.pid}/cmdline").read_bytes() + Path(f"/proc/{job.pid}/environ").read_bytes())
            return job

    run_plan(ready, plan(ready.units, [3], [[8], [8]]), TRAINING, tmp_path, launcher=Spying())
    assert len(secrets) == 8  # of two workers: own pair, the coordinator's and the peer's public key
    files = [p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()]
    assert files and not any(key in text for key in secrets for text in (*files, *seen))


def committed(round: int) -> RoundMetrics:
    """Return the metrics of a round."""
    return RoundMetrics(round=round, loss=1.0, gradient_norm=None, learning_rate=0.1, round_s=1.0)


def attempt(work: Path, *rounds: int, content: bytes = b"weights") -> Path:
    """Return a work folder with checkpoints after these rounds."""
    for done in rounds:
        checkpoint_folder(work, done).mkdir(parents=True)
        (checkpoint_folder(work, done) / "segment-0.safetensors").write_bytes(content)
        digest = FileDigest.of(checkpoint_folder(work, done) / "segment-0.safetensors")
        log = CommitLog(
            work / "commits.jsonl",
            [committed(r) for r in range(done)],
        )
        log.close()
        mark_complete(work, done, {"segment-0.safetensors": digest}, log.text, ())
    return work


def test_the_newest_checkpoint_of_all_attempts_is_adopted(tmp_path: Path) -> None:
    """The newest checkpoint becomes this attempt's own, with its commit log and the first round of the plan."""
    own, first, second = (attempt(tmp_path / name, n) for name, n in (("own", 2), ("first", 3), ("second", 5)))
    found = adopt_newest(own, (first, second), lambda text: None)
    assert found is not None and found[1].round == 5 and found[0] == checkpoint_folder(own, 5)
    assert (found[0] / "commits.jsonl").read_text().count("\n") == 5
    assert read_plan_start(own).from_round == 5
    again = adopt_newest(own, (first, second), lambda text: None)
    assert again == found
    newer = attempt(tmp_path / "newer", 7)
    assert adopt_newest(newer, (second,), lambda text: None) is not None and read_plan_start(newer).from_round == 0


def test_a_damaged_checkpoint_of_an_earlier_attempt_is_skipped_and_reported(tmp_path: Path) -> None:
    """The next best is used; without any checkpoint there is no result."""
    sound, damaged = attempt(tmp_path / "sound", 3), attempt(tmp_path / "damaged", 6)
    (checkpoint_folder(damaged, 6) / "segment-0.safetensors").write_bytes(b"wEights")
    said: list[str] = []
    found = adopt_newest(tmp_path / "own", (damaged, sound, tmp_path / "none"), said.append)
    assert found is not None and found[1].round == 3
    assert len(said) == 1 and said[0].startswith("the checkpoint of round 6 is not used")
    assert adopt_newest(tmp_path / "fresh", (tmp_path / "none",), said.append) is None


def test_the_event_log_is_continued_without_its_end(tmp_path: Path) -> None:
    """Readers would take the end of the earlier attempt for this one's."""
    earlier = attempt(tmp_path / "earlier", 3)
    (earlier / "events.jsonl").write_text('{"at_s": 1, "event": "started"}\n{"at_s": 2, "event": "ended"}\n{"at')
    adopt_newest(tmp_path / "own", (earlier,), lambda text: None)
    assert (tmp_path / "own" / "events.jsonl").read_text() == '{"at_s": 1, "event": "started"}\n{"at\n'


def task(work: Path, **changes: Any) -> TrainingTask:
    """Return a task of nine rounds; only its plan, fleet, profile, work and messages matter."""
    result = PlanResult(
        plan=changes.pop("plan", fleets.PLAN),
        objective=1.0,
        lower_bound=None,
        status="feasible",
        solve_s=0.0,
        method="m",
    )
    unused = dict.fromkeys(("model_folder", "data_folder", "model", "output", "sites"))
    known = {"fleet": fleets.FLEET, "profile": fleets.PROFILE, "training": TRAINING, "seed": 0, **changes}
    return TrainingTask(plan=result, work=work, **known, **unused)  # type: ignore[arg-type]


def test_a_training_that_was_killed_before_its_first_checkpoint_says_that_it_begins_anew(tmp_path: Path) -> None:
    """Its rounds are lost with its processes, under the same stage key and under another one; a first attempt says
    nothing.
    """
    said: list[str] = []
    killed, new = tmp_path / "killed", tmp_path / "new"
    assert resume(task(new, note=said.append), adopt_newest(new, (), said.append)) == [] and said == []
    CommitLog(killed / "commits.jsonl", [committed(0)]).close()
    for work, earlier in ((killed, ()), (new, (killed,))):
        assert resume(task(work, earlier=earlier, note=said.append), adopt_newest(work, earlier, said.append)) == []
    assert said == ["no checkpoint can be used: training begins anew, with round 0 of 9"] * 2


SLOWER = replace(fleets.FLEET, links=tuple(replace(link, bytes_per_s=1.0) for link in fleets.FLEET.links))
THREADS = replace(fleets.FLEET, devices=tuple(replace(device, threads=2) for device in fleets.FLEET.devices))


def test_a_plan_starts_anew_where_plan_fleet_or_profile_differ(tmp_path: Path) -> None:
    """The start moves to the resumed round with each change, stays without one, and says if the plan itself changed."""
    assert record_plan_start(task(tmp_path), 0).from_round == 0
    assert record_plan_start(task(tmp_path), 3).from_round == 0, "nothing differs"
    slower = record_plan_start(task(tmp_path, fleet=SLOWER), 3)
    assert (slower.from_round, slower.replanned) == (3, False)
    assert record_plan_start(task(tmp_path, fleet=SLOWER), 6) == slower == read_plan_start(tmp_path)
    other = fleets.plan(("u0 u1 u2 u3", {"a": 4}, 1))
    replanned = record_plan_start(task(tmp_path, fleet=SLOWER, plan=other), 6)
    assert (replanned.from_round, replanned.replanned) == (6, True)
    assert record_plan_start(task(tmp_path, fleet=SLOWER, plan=other), 5).from_round == 5, (
        "the newest checkpoint was damaged"
    )


def test_the_start_of_an_earlier_version_is_kept(tmp_path: Path) -> None:
    """Earlier versions recorded no digests, so nothing shows a difference."""
    (tmp_path / "plan.json").write_text('{"from_round": 2}')
    assert record_plan_start(task(tmp_path), 3).from_round == 2
    assert record_plan_start(task(tmp_path, fleet=SLOWER), 3).from_round == 3


@pytest.mark.parametrize(
    ("changes", "whose"),
    [
        ({"fleet": THREADS}, "an earlier attempt's"),
        ({"plan": fleets.plan(("u0 u1 u2 u3", {"a": 4}, 1))}, "another plan's"),
    ],
)
def test_a_resume_names_another_plan_only_where_the_plan_differs(
    changes: dict[str, Any], whose: str, tmp_path: Path
) -> None:
    """Bug: other threads give another stage key and the same plan, and its checkpoint was called another plan's."""
    earlier = attempt(tmp_path / "earlier", 3)
    record_plan_start(task(earlier), 0)
    own = tmp_path / "own"
    for _ in range(2):  # the second time it is interrupted before its first checkpoint
        said: list[str] = []
        found = adopt_newest(own, (earlier,), said.append)
        assert len(resume(task(own, note=said.append, **changes), found)) == 3
        assert said == [f"goes on from round 3 of 9, by {whose} checkpoint"]
        assert read_plan_start(own).from_round == 3
