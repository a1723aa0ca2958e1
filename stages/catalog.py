"""The catalog of stages: inputs, outputs, and the ingredients of each stage key."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from fleetune.contracts.record import check_name, record
from fleetune.contracts.task import LOCAL_DATA
from fleetune.errors import Refused


@record
class StageSpec:
    """One stage of the catalog."""

    name: str
    version: int
    """Increases when the stage makes different outputs of the same inputs."""
    module: str
    """Started as `python -m module --task task.json`."""
    config: tuple[str, ...] = ()
    """The slice of the run's config it reads: whole sections or single settings (`training.optimizer`)."""
    unread: tuple[str, ...] = ()
    """Settings of these sections that it does not read."""
    inputs: tuple[str, ...] = ()
    unkeyed_inputs: tuple[str, ...] = ()
    """Inputs whose digests are not part of its key: its outputs depend only on their `key_facts`, or not on them."""
    key_facts: tuple[str, ...] = ()
    """Facts about unkeyed inputs that are part of its key, unless they are empty: `plan decisions`, `device
    arithmetic`, `training method`."""
    outputs: tuple[str, ...]
    content: tuple[str, ...] = ()
    """External content that it reads, identified by digest: `data`, `model weights`."""
    local_config: tuple[str, ...] = ()
    """The slice of the run's config that it reads too where data lie on devices (`data.local`)."""
    local_content: tuple[str, ...] = ()
    """External content that it reads too where data lie on devices."""
    packages: tuple[str, ...] = ()
    """Distributions whose versions are part of its key."""
    always_runs: bool = False
    """It measures devices or follows another stage, so it runs even when its key is known."""
    resumes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Inputs and facts that may differ from those of an unfinished attempt that it resumes: name -> files that may not
    differ. Empty: it resumes attempts of the same key only."""
    measures: str = ""
    """Its output that is a measurement: the stored one is kept until another is believed."""
    evidence: str = ""
    """Its output that says what was measured and how, also when the stored measurement is kept. Empty: none."""
    follows: str = ""
    """The stage that it runs beside, reading the work folder of that stage."""
    image: str = ""
    """Its image when stages run in containers; empty for one that starts work on devices: it runs beside the flow."""
    end_s: float = 5.0
    """Longest time in seconds between the request that it should end and its end; then it is killed."""
    needs_machines: bool = False
    """It needs real devices, so it cannot run on a simulated fleet."""

    def __post_init__(self) -> None:
        check_name("stage", self.name)


PLAN_DECISIONS, DEVICE_ARITHMETIC, TRAINING_METHOD = "plan decisions", "device arithmetic", "training method"
TENSORS = ("torch", "transformers", "peft", "numpy")
OPTIONAL = ("profile", "training.recompute")
"""Sections and settings that plain values of a config omit when they are neutral."""
BATCH = ("training.batch_samples", "training.micro_batch_samples")

DISCOVER = StageSpec(
    name="discover",
    version=1,
    module="stages.discover",
    config=("fleet",),
    outputs=("fleet", "measurement"),
    packages=("psutil", "pyzmq"),
    always_runs=True,
    measures="fleet",
    evidence="measurement",
)
PREPARE = StageSpec(
    name="prepare",
    version=5,
    module="stages.prepare",
    config=("model", "data"),
    outputs=("model", "data"),
    content=("data", "model weights"),
    local_config=("fleet",),
    local_content=(LOCAL_DATA,),
    packages=(*TENSORS, "safetensors", "tokenizers", "pyarrow", "pillow", "scikit-learn"),
    image="fleetune-train",
)
PROFILE = StageSpec(
    name="profile",
    version=8,
    module="stages.profile",
    config=("model", *BATCH, "training.optimizer", "training.momentum", "profile"),
    inputs=("fleet", "model", "data"),
    outputs=("profile",),
    content=("model weights",),
    packages=TENSORS,
)
PLAN = StageSpec(
    name="plan",
    version=6,
    module="stages.plan",
    config=("strategy", *BATCH, "training.recompute"),
    local_config=("data.local",),
    inputs=("fleet", "profile"),
    outputs=("plan",),
    packages=("numpy", "scipy", "numba", "networkx", "ortools"),
    image="fleetune-plan",
)
TRAIN = StageSpec(
    name="train",
    version=6,
    module="stages.train",
    config=("model", "training"),
    unread=("training.recompute",),  # the plan has what came of it
    local_config=("data.local",),
    inputs=("model", "data", "plan", "fleet", "profile"),
    unkeyed_inputs=("plan", "fleet", "profile"),
    key_facts=(PLAN_DECISIONS, DEVICE_ARITHMETIC, TRAINING_METHOD),
    outputs=("checkpoint", "metrics"),
    content=("model weights",),
    packages=(*TENSORS, "safetensors", "pyzmq"),
    resumes={PLAN_DECISIONS: (), DEVICE_ARITHMETIC: ()},
    end_s=25.0,  # it writes a last checkpoint, whose own limit is shorter
    needs_machines=True,
)
MONITOR = StageSpec(
    name="monitor",
    version=1,
    module="stages.monitor",
    inputs=("metrics",),
    outputs=("events",),
    always_runs=True,
    follows="train",
    image="fleetune-plan",
)
EVALUATE = StageSpec(
    name="evaluate",
    version=5,
    module="stages.evaluate",
    config=("name", "model"),
    inputs=("fleet", "model", "data", "profile", "plan", "checkpoint", "metrics", "events"),
    outputs=("evaluation",),
    content=("model weights",),
    packages=(*TENSORS, "scikit-learn", "jinja2"),
    image="fleetune-train",
)

STAGES = (DISCOVER, PREPARE, PROFILE, PLAN, TRAIN, MONITOR, EVALUATE)
"""In the order in which they run: `discover` refuses an impossible fleet before anything is prepared for it."""


def find_stage(catalog: Sequence[StageSpec], name: str) -> StageSpec:
    """The stage of that name; Refused with the list of names when there is none."""
    for spec in catalog:
        if spec.name == name:
            return spec
    raise Refused(f"stage {name!r} does not exist; stages are {', '.join(spec.name for spec in catalog)}")


def producer_of(catalog: Sequence[StageSpec], kind: str) -> StageSpec:
    """The stage that makes artifacts of a kind; Refused with the list of kinds when there is none."""
    for spec in catalog:
        if kind in spec.outputs:
            return spec
    made = ", ".join(kind for spec in catalog for kind in spec.outputs)
    raise Refused(f"no stage makes {kind!r}; kinds are {made}")


def waves(catalog: Sequence[StageSpec]) -> tuple[tuple[StageSpec, ...], ...]:
    """Stages in the order of the catalog; a stage and its followers form one wave."""
    return tuple(
        (spec, *(other for other in catalog if other.follows == spec.name)) for spec in catalog if not spec.follows
    )


def has_local_data(config: Mapping[str, Any]) -> bool:
    """True if a run's config (as plain values) has data that lie on devices."""
    return bool(config.get("data", {}).get("local"))


def content_names(spec: StageSpec, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the external content that a stage reads in a run of this config (as plain values)."""
    return (*spec.content, *(spec.local_content if has_local_data(config) else ()))


def config_slice(spec: StageSpec, config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a run's config (as plain values) that a stage reads, nested as it was.

    Optional sections that are omitted are left out, so that a setting which is not used changes no key.
    """
    cut: dict[str, Any] = {}
    for path in (*spec.config, *(spec.local_config if has_local_data(config) else ())):
        *sections, last = path.split(".")
        source, target = config, cut
        for section in sections:
            source, target = source[section], target.setdefault(section, {})
        if path not in OPTIONAL or last in source:
            target[last] = source[last]
    for path in spec.unread:
        section, setting = path.split(".")
        cut[section] = {name: value for name, value in cut[section].items() if name != setting}
    return cut
