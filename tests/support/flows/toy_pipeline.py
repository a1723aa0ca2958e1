"""A small catalogue of quick stages, for the rules that hold whatever the stages compute.

All of them are this module, run as real processes. They read a folder, the world (the config's data source): `value` is
what `measure` measures; a file `stop-STAGE` makes that stage say so through the pipe `here` and then wait to be killed;
`freeze-STAGE` makes it stop itself (SIGSTOP); `fail-STAGE` holds an exit code, and with `goes-on` a stage that fails
leaves half of its work; every start adds a line to `started`.
"""

import json
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fleetune.contracts import json_io
from fleetune.contracts.run_config import DataRequest, ModelRequest, RunConfig
from fleetune.contracts.training_request import TrainingRequest
from fleetune.errors import Infeasible, Refused, TryAgain
from fleetune.launching import Command, Job, ProcessLauncher
from fleetune.launching.life_watch import USUAL, LifeWatch
from fleetune.store import RunRecord, Store
from flows.context import RunContext, StageSelection
from flows.provenance import Commit, MeasurementPair, MeasurementVerdict
from flows.runner import Runner
from flows.tracking import EventListener, ignore_event
from flows.without_prefect import run_without_prefect
from stages.catalog import StageSpec
from stages.entry_point import StageContext, main

HERE = "tests.support.flows.toy_pipeline"
IMPORTS = ("flows.without_prefect", "flows.runner", "stages.entry_point")
"""Modules that this one imports."""
CODE = {"tests/support/flows/toy_pipeline.py": "d0"}
MEASURE = StageSpec(
    name="measure",
    version=1,
    module=HERE,
    config=("data",),
    outputs=("value", "seen"),
    always_runs=True,
    measures="value",
    evidence="seen",
)
SHAPE = StageSpec(
    name="shape",
    version=1,
    module=HERE,
    config=("data", "training.batch_samples"),
    inputs=("value",),
    outputs=("shape",),
    content=("data",),
    packages=("numpy",),
)
LEARN = StageSpec(
    name="learn",
    version=1,
    module=HERE,
    config=("data", "training"),
    inputs=("value", "shape"),
    outputs=("weights", "metrics"),
    resumes={"value": (), "shape": ("start",)},
)
WATCH = StageSpec(
    name="watch",
    version=1,
    module=HERE,
    config=("data",),
    inputs=("metrics",),
    outputs=("events",),
    always_runs=True,
    follows="learn",
)
SCORE = StageSpec(
    name="score",
    version=1,
    module=HERE,
    config=("data", "name"),
    inputs=("shape", "weights", "events"),
    outputs=("scores",),
)
CATALOG = (MEASURE, SHAPE, LEARN, WATCH, SCORE)


class World:
    """The folder that the stages read, as tests see it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def new(cls, folder: Path) -> "World":
        """A world in which nothing is stopped and nothing fails."""
        folder.mkdir()
        os.mkfifo(folder / "here")
        world = cls(folder)
        world.set("started", "")
        world.set("value", "100")
        return world

    def set(self, name: str, text: str) -> None:
        """Write one of its files."""
        (self.folder / name).write_text(text)

    def clear(self, name: str) -> None:
        """Delete one of its files."""
        (self.folder / name).unlink()

    def started(self) -> list[str]:
        """The stages started since the last call, without those that always run."""
        names = (self.folder / "started").read_text().split()
        self.set("started", "")
        return [name for name in names if name not in ("measure", "watch")]

    def config(self, name: str = "toy", **training: float) -> RunConfig:
        """A config whose data source is this world."""
        return RunConfig(
            name=name,
            model=ModelRequest(task="causal-lm", config={"model_type": "gpt2"}),
            data=DataRequest(source=str(self.folder)),
            training=json_io.load(TrainingRequest, {"rounds": 3, **training}, "training"),
        )


def data_content(config: RunConfig) -> str:
    """Digest of the data: the text of the world's file `data`."""
    path = Path(config.data.source) / "data"
    return path.read_text() if path.exists() else ""


def close_enough(pair: MeasurementPair) -> MeasurementVerdict:
    """The stored value is kept within ten per cent; in doubt, until two runs see another or the user asks."""
    old, new = (float((folders["value"] / "value").read_text()) for folders in (pair.stored, pair.measured))
    if abs(new - old) <= 0.1 * old:
        return MeasurementVerdict(keep=True)
    seen = (pair.stored["seen"] / "seen").read_text()
    doubt = (Path(pair.config.data.source) / "doubt").exists() and not pair.anew and float(seen) != new
    return MeasurementVerdict(keep=doubt, why=f"{new:g} was seen once" if doubt else "")


def still_there(stored: Path, measured: Path, config: RunConfig) -> bool:
    """True within a factor of two."""
    old, new = (float((folder / "value").read_text()) for folder in (stored, measured))
    return old / 2 < new < old * 2


class ForkingLauncher:
    """Forks stages from a process that has imported what they import: each import would take longer than a stage."""

    def __init__(self, watch: LifeWatch = USUAL) -> None:
        self._watch = watch

    def start(self, command: Command) -> Job:
        """Start a stage."""
        return ProcessLauncher(watch=self._watch).start(replace(command, preloads=IMPORTS, forks=False))


def toy_context(
    root: Path, listen: EventListener = ignore_event, numpy: str = "1.0", code: Mapping[str, str] = CODE
) -> RunContext:
    """The context of runs of the toy catalogue; `code` are the files that its stages run."""
    return RunContext(
        store=Store(root),
        listen=listen,
        catalog=CATALOG,
        launcher=ForkingLauncher(),
        contents={"data": data_content},
        versions={"numpy": numpy}.__getitem__,
        sources=lambda module: code,
        commit=lambda: Commit(id="c0ffee", dirty=True),
        judges={"value": close_enough},
        same_members={"value": still_there},
    )


def run_toy(root: Path, config: RunConfig, numpy: str = "1.0", **selection: str) -> RunRecord:
    """Run the toy pipeline once."""
    return run_without_prefect(Runner(toy_context(root, numpy=numpy), config, StageSelection(**selection)))


def toy_stage(context: StageContext) -> None:
    """Any stage: add a line to `started`, do as the world says, write one file per output."""
    name, world = context.task.stage, Path(context.task.config["data"]["source"])
    with (world / "started").open("a") as started:
        started.write(name + "\n")
    if (world / f"stop-{name}").exists():
        (context.work / "half").write_text("done before the stop\n")
        (world / "here").write_text(f"{os.getpid()}\n")
        signal.pause()
    if (world / f"freeze-{name}").exists():
        os.kill(os.getpid(), signal.SIGSTOP)
    if (world / f"fail-{name}").exists():
        if (world / "goes-on").exists():
            (context.work / "half").write_text("done before the failure\n")
        code = int((world / f"fail-{name}").read_text())
        raise {64: Refused, 65: Infeasible, 75: TryAgain}[code](f"{name} cannot go on, as the world has it")
    for half in (work / "half" for work in (context.work, *map(Path, context.task.earlier))):
        if half.exists() and (world / "goes-on").exists():
            context.channel.resumed("goes on from the half")
            half.rename(context.work / "whole")
    context.channel.progress(name, 1, 2, "steps")
    text = json.dumps([name, context.task.seed, *(_read(context.input(kind)) for kind in context.task.inputs)])
    if name == "measure":
        text = (world / "value").read_text()
    elif name == "learn":
        (context.work / "events.jsonl").write_text('{"event": "end"}\n')
        text = json.dumps([text, context.task.config["training"]])
    elif name == "watch":
        events = context.input("metrics") / "events.jsonl"
        text = events.read_text() if events.exists() else ""  # learn has just begun
    for kind in {spec.name: spec.outputs for spec in CATALOG}[name]:
        (context.output(kind) / ("events.jsonl" if kind == "metrics" else kind)).write_text(
            '{"event": "end"}\n' if kind == "metrics" else text
        )
    if name == "shape":
        start = world / "start"
        (context.output("shape") / "start").write_text(start.read_text() if start.exists() else "")


def _read(folder: Path) -> list[str]:
    return [path.read_text() for path in sorted(folder.glob("*")) if path.is_file() and path.name != "manifest.json"]


if __name__ == "__main__":
    if sys.argv[1] == "--run":
        config = json_io.read(RunConfig, Path(sys.argv[2]))
        run_without_prefect(Runner(toy_context(Path(sys.argv[3])), config, StageSelection()))
    else:
        main(toy_stage)
