"""The table of stages: what each reads, what it makes, and what its key is a hash of."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from fleetune.contracts.record import a_name, record
from fleetune.errors import Refused


@record
class StageEntry:
    """One row of the table."""

    name: str
    version: int
    """Goes up when the stage makes something else of the same inputs."""
    module: str
    """Run as `python -m module --task task.json`."""
    config: tuple[str, ...] = ()
    """The slice of the run's config it reads: whole sections or single settings (`training.optimizer`)."""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...]
    content: tuple[str, ...] = ()
    """What it reads from outside the store, identified by content: `data`, `model weights`."""
    packages: tuple[str, ...] = ()
    """Distributions it computes with; their versions are part of its key."""
    always: bool = False
    """It looks at the world (or follows another stage), so a known key does not make it superfluous."""
    resumes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Inputs that may differ from those of an unfinished attempt that this one goes on from: kind -> its files that may
    not. Empty: only an attempt of the same key is gone on from."""
    settles: str = ""
    """An output that measures the world: one close enough to the stored one is dropped for the stored one."""
    beside: str = ""
    """The stage it runs beside; it then reads that stage's work folder while that runs."""
    image: str = ""
    """What it runs in where stages run in containers; empty for one that conducts devices: it runs beside the flow."""
    needs_machines: bool = False
    """It works on the devices themselves, so there is none of it on a simulated fleet."""

    def __post_init__(self) -> None:
        a_name("stage", self.name)


TENSORS = ("torch", "transformers", "peft", "numpy")
OPTIONAL = ("profile",)
"""Sections that a config's plain values leave out where they say nothing."""
BATCH = ("training.batch_samples", "training.micro_batch_samples")

DISCOVER = StageEntry(
    name="discover",
    version=1,
    module="stages.discover",
    config=("fleet",),
    outputs=("fleet",),
    packages=("psutil", "pyzmq"),
    always=True,
    settles="fleet",
)
PROFILE = StageEntry(
    name="profile",
    version=1,
    module="stages.profile",
    config=("model", "data", *BATCH, "training.optimizer", "training.momentum", "profile"),
    inputs=("fleet",),
    outputs=("profile", "data"),
    content=("data", "model weights"),
    packages=(*TENSORS, "pyarrow", "scikit-learn"),
)
PLAN = StageEntry(
    name="plan",
    version=1,
    module="stages.plan",
    config=("strategy", *BATCH),
    inputs=("fleet", "profile"),
    outputs=("plan",),
    packages=("numpy", "scipy", "numba", "networkx", "ortools"),
    image="fleetune-plan",
)
TRAIN = StageEntry(
    name="train",
    version=1,
    module="stages.train",
    config=("model", "training"),
    inputs=("fleet", "profile", "data", "plan"),
    outputs=("checkpoint", "metrics"),
    content=("model weights",),
    packages=(*TENSORS, "safetensors", "pyzmq"),
    resumes={"fleet": (), "plan": (), "profile": ("start.safetensors", "model/config.json")},
    needs_machines=True,
)
MONITOR = StageEntry(
    name="monitor",
    version=1,
    module="stages.monitor",
    inputs=("metrics",),
    outputs=("events",),
    always=True,
    beside="train",
    image="fleetune-plan",
)
EVALUATE = StageEntry(
    name="evaluate",
    version=1,
    module="stages.evaluate",
    config=("name", "model"),
    inputs=("fleet", "profile", "data", "plan", "checkpoint", "metrics", "events"),
    outputs=("evaluation",),
    content=("model weights",),
    packages=(*TENSORS, "scikit-learn", "jinja2"),
    image="fleetune-train",
)

STAGES = (DISCOVER, PROFILE, PLAN, TRAIN, MONITOR, EVALUATE)


def entry(catalog: Sequence[StageEntry], name: str) -> StageEntry:
    """The row of a stage; Refused with the list of names when there is none."""
    for row in catalog:
        if row.name == name:
            return row
    raise Refused(f"stage {name!r} does not exist; stages are {', '.join(row.name for row in catalog)}")


def maker(catalog: Sequence[StageEntry], kind: str) -> StageEntry:
    """The stage that makes artifacts of a kind."""
    for row in catalog:
        if kind in row.outputs:
            return row
    made = ", ".join(kind for row in catalog for kind in row.outputs)
    raise Refused(f"no stage makes {kind!r}; kinds are {made}")


def waves(catalog: Sequence[StageEntry]) -> tuple[tuple[StageEntry, ...], ...]:
    """Stages in the order of the catalog, those that run beside each other together."""
    return tuple((row, *(other for other in catalog if other.beside == row.name)) for row in catalog if not row.beside)


def config_slice(row: StageEntry, config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a run's config (as plain values) that a stage reads, nested as it was.

    A section that plain values leave out is as if it were not there: a setting that is not used changes no key.
    """
    cut: dict[str, Any] = {}
    for path in row.config:
        if path in OPTIONAL and path not in config:
            continue
        *sections, last = path.split(".")
        source, target = config, cut
        for section in sections:
            source, target = source[section], target.setdefault(section, {})
        target[last] = source[last]
    return cut
