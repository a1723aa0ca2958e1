"""An attempt of a training goes on from the newest checkpoint of its own or of earlier ones, and says so."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleetune.contracts.metrics import RoundMetrics
from fleetune.contracts.plan import PlanResult
from fleetune.contracts.training_request import TrainingRequest
from fleetune.errors import Refused
from fleetune.training.checkpoints import FileDigest, checkpoint_folder, mark_complete
from fleetune.training.commit_log import (
    COMMITS,
    CommitLog,
    adopt_newest,
    logged_beyond,
    read_plan_start,
    record_plan_start,
    resume,
)
from fleetune.training.task import TrainingTask
from tests.support.clock import fleets

TRAINING = TrainingRequest(
    rounds=9, batch_samples=24, micro_batch_samples=8, learning_rate=1e-3, schedule="cosine", checkpoint_every_rounds=3
)


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


def test_what_another_plan_decided_is_not_repeated(tmp_path: Path) -> None:
    """Bug: rounds of another plan that are run again gave this one their gates, too many for where heads are now."""
    line = replace(committed(0), gates={"h": "11"})
    other = fleets.plan(("u0 u1 u2 u3", {"a": 4}, 1))
    record_plan_start(task(tmp_path), 0)
    for changes, left in (({}, [line]), ({"plan": other}, []), ({"plan": other}, [line])):
        CommitLog(tmp_path / COMMITS, [line]).close()
        record_plan_start(task(tmp_path, **changes), 0)
        assert logged_beyond(tmp_path, []) == left, "an attempt under the same plan repeats what it has decided"


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


def between_averages(work: Path, done: int, lanes: str) -> Path:
    """A work folder with a checkpoint of lanes that differ."""
    folder = checkpoint_folder(work, done)
    folder.mkdir(parents=True)
    digests = {}
    for lane in lanes:
        file = folder / f"{lane}@segment-0.safetensors"
        file.write_bytes(f"weights of {lane}".encode())
        digests[file.name] = FileDigest.of(file)
    log = CommitLog(work / "commits.jsonl", [committed(r) for r in range(done)])
    log.close()
    mark_complete(work, done, digests, log.text, (3,))
    return work


def test_lanes_begin_with_an_average_if_there_is_one(tmp_path: Path) -> None:
    """Bug: a client that a checkpoint between two averages lacks began with the state of another client.

    Where there is no other checkpoint it does, and a note says so, unless the lanes own data: that is refused.
    """
    work = between_averages(attempt(tmp_path / "work", 3), 4, "xy")
    said: list[str] = []
    found = {lanes: adopt_newest(work, (), said.append, lanes) for lanes in ("x", "yx", "xyz")}
    assert {lanes: one and one.mark.round for lanes, one in found.items()} == {"x": 4, "yx": 4, "xyz": 3}
    assert len(said) == 1 and "holds models of x, y that were not averaged yet" in said[0]
    alone = between_averages(tmp_path / "alone", 4, "xy")
    said.clear()
    lent = adopt_newest(alone, (), said.append, "xyz")
    assert lent is not None and lent.mark.round == 4 and "lanes that it lacks begin with the state of" in said[-1]
    with pytest.raises(
        Refused, match="^data.local: the checkpoints lie between two averages, and z would begin with what"
    ):
        adopt_newest(alone, (), said.append, "xyz", owned=True)
