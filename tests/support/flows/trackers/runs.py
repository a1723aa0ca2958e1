"""A run by hand that trains: its store, its record, and the work folder that its training writes."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from fleetune.contracts import json_io
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.metrics import RoundMetrics
from fleetune.data.prepared_data import INFO, MASK, POSITIONS, ArrayInfo, DataInfo, SplitInfo, create_arrays
from fleetune.monitoring import EventLog
from fleetune.store import RunRecord, StageRecord, Store
from tests.support.drawing.contents import content
from tests.support.flows.run_pages.runs import artifacts_of, config, folder

KEY = "1" * 32
STARTED, ENDED = "2026-01-02T12:00:00+00:00", "2026-01-02T12:00:04+00:00"
STARTED_S = 1767355200.0
LENGTHS = (5, 3, 4)
"""Tokens of the samples; rows have six."""


class TrainingRun:
    """A run whose stage `train` has begun, on the plan of `content()`: 24 samples a round, on one lane."""

    def __init__(self, root: Path, packed: bool = False, fleet: Fleet | None = None, validation: bool = False) -> None:
        self.store = Store(root)
        self.made = content()
        self.work = self.store.work(KEY)
        data = root.parent / "data"
        write_data(data, packed, ("train", "validation") if validation else ("train",))
        files = artifacts_of(self.made)
        outputs = {
            "plan": self.store.put("plan", folder(self.store, "plan", files["plan"]), stage_key=KEY, inputs={}),
            "data": self.store.put("data", data, stage_key=KEY, inputs={}),
        }
        for kind, text in (
            ("fleet", json_io.text(fleet or self.made.fleet)),
            ("profile", json_io.text(self.made.profile)),
        ):
            made = folder(self.store, kind, {f"{kind}.json": text})
            outputs[kind] = self.store.put(kind, made, stage_key=KEY, inputs={})
        self.record = RunRecord(
            id="demo-1",
            config=config(),
            seed=0,
            code_version="1",
            started=STARTED,
            stages=(
                StageRecord(stage="plan", state="done", outputs=outputs),
                StageRecord(stage="train", state="running", key=KEY, started=STARTED),
                StageRecord(stage="evaluate"),
            ),
        )
        self.store.runs.save(self.record)

    def commit(self, rounds: list[RoundMetrics]) -> None:
        """Replace the commit log, as an attempt and a recovery do."""
        text = "".join(json.dumps(json_io.dump(one)) + "\n" for one in rounds)
        (self.work / "new").write_text(text)
        (self.work / "new").replace(self.work / "commits.jsonl")

    def log(self, commits: dict[int, float]) -> None:
        """Append commits, round -> seconds after the start of the run, to the event log."""
        clock = iter(commits.values())
        with EventLog(self.work / "events.jsonl", clock=lambda: STARTED_S + next(clock)) as log:
            for round in commits:
                log.committed(round)

    def end(self) -> None:
        """Store what the training and the evaluation made."""
        files = artifacts_of(self.made)
        metrics = folder(self.store, "metrics", files["metrics"])
        (metrics / "events.jsonl").write_bytes((self.work / "events.jsonl").read_bytes())
        ended = {"state": "done", "started": STARTED, "ended": ENDED}
        stored = self.store.put("metrics", metrics, stage_key=KEY, inputs={})
        scores = folder(self.store, "evaluation", files["evaluation"])
        evaluation = self.store.put("evaluation", scores, stage_key=KEY, inputs={})
        plan = self.record.stages[0]
        train = StageRecord(stage="train", key=KEY, outputs={"metrics": stored}, **ended)
        scored = StageRecord(stage="evaluate", outputs={"evaluation": evaluation}, **ended)
        self.record = replace(self.record, stages=(plan, train, scored))
        self.store.drop_work(KEY)


def write_data(to: Path, packed: bool, splits: tuple[str, ...] = ("train",)) -> None:
    """Write prepared texts: three samples of LENGTHS tokens, each in a row of its own, or packed into one row of 14."""
    shape = (1, 14) if packed else (len(LENGTHS), 6)
    name = POSITIONS if packed else MASK
    arrays = tuple(ArrayInfo(name=each, dtype="int32", shape=shape) for each in ("input_ids", name))
    written = tuple(SplitInfo(name=split, samples=shape[0], arrays=arrays) for split in splits)
    for split in written:
        made = create_arrays(to, split)[name]
        if packed:
            made[0] = np.concatenate([*(np.arange(length) for length in LENGTHS), np.zeros(2)])
        else:
            made[:] = np.arange(6)[None, :] < np.array(LENGTHS)[:, None]
        made.flush()
    info = DataInfo(task="causal-lm", labels=(), splits=written, source="by hand", digest="0" * 32, seed=0)
    (to / INFO).write_text(json_io.text(info))
