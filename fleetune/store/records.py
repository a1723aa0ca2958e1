"""What the store writes beside the artifacts themselves. Moments are ISO 8601 in UTC."""

from collections.abc import Iterable, Mapping
from dataclasses import field

from fleetune.contracts.record import check_digest, check_file_name, check_name, distinct, not_negative, one_of, record
from fleetune.contracts.run_config import RunConfig
from fleetune.errors import Refused

SCHEMA = 1
MANIFEST = "manifest.json"
DIGEST_DIGITS, SHA256_DIGITS = 32, 64
RUN_STATES = ("running", "done", "failed", "interrupted", "planned")
STAGE_STATES = ("waiting", "running", "done", "failed", "stopped")
HOW = ("", "ran", "reused")


@record
class FileEntry:
    """One file of an artifact."""

    path: str
    """Relative to the artifact, with forward slashes."""
    bytes: int
    sha256: str

    def __post_init__(self) -> None:
        check_file_name("artifact", self.path)
        check_digest(f"file {self.path}: sha256", self.sha256, SHA256_DIGITS)
        not_negative(f"file {self.path}", bytes=self.bytes)


@record
class Manifest:
    """`manifest.json` of an artifact: what it holds and what made it."""

    kind: str
    schema: int = SCHEMA
    files: tuple[FileEntry, ...]
    stage_key: str
    """Of the stage that produced it."""
    inputs: dict[str, str]
    """kind -> digest of what that stage read"""
    created: str

    def __post_init__(self) -> None:
        check_name("manifest", self.kind)
        check_name("manifest: stage_key", self.stage_key)
        artifacts("manifest: inputs", self.inputs)
        _prove_apart(f"artifact of kind {self.kind}", [file.path for file in self.files])


@record
class KeyRecord:
    """`keys/STAGE_KEY.json`: what a stage key stands for, written once all of it is in the store."""

    stage: str
    run: str
    """The run that made it."""
    outputs: dict[str, str]
    """kind -> digest"""
    ingredients: dict[str, str]
    """Everything the key is a hash of, by name."""

    def __post_init__(self) -> None:
        check_name("key record: stage", self.stage)
        check_name("key record: run", self.run)
        artifacts("key record: outputs", self.outputs)


@record
class StageRecord:
    """What a run did about one stage."""

    stage: str
    key: str = ""
    """Empty until its inputs are known."""
    state: str = "waiting"
    started: str | None = None
    ended: str | None = None
    inputs: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    """kind -> digest"""
    how: str = ""
    """`ran` or `reused`; empty before that is decided."""
    why: str = ""
    """Why it ran or was reused, such as `ran: training.learning_rate changed`."""
    error: str = ""

    def __post_init__(self) -> None:
        check_name("stage", self.stage)
        if self.key:
            check_name(f"stage {self.stage}: key", self.key)
        artifacts(f"stage {self.stage}: inputs", self.inputs)
        artifacts(f"stage {self.stage}: outputs", self.outputs)
        one_of(f"stage {self.stage}", "state", self.state, STAGE_STATES)
        one_of(f"stage {self.stage}", "how", self.how, HOW)


@record
class RunRecord:
    """`runs/RUN_ID/run.json`."""

    id: str
    config: RunConfig
    seed: int
    code_version: str
    commit: str = ""
    """Of the git checkout that the code was run from; empty where there was none."""
    dirty: bool = False
    """The code had been edited since that commit."""
    state: str = "running"
    """`planned` is a dry run; `interrupted` is said of a run whose process is gone."""
    started: str
    ended: str | None = None
    stages: tuple[StageRecord, ...]
    error: str = ""
    exit_code: int = 0
    """Of the error, when there is one."""

    def __post_init__(self) -> None:
        check_name("run", self.id)
        one_of(f"run {self.id}", "state", self.state, RUN_STATES)
        distinct(f"run {self.id}", "stage", (stage.stage for stage in self.stages))

    def stage(self, name: str) -> StageRecord:
        """The record of one stage."""
        for stage in self.stages:
            if stage.stage == name:
                return stage
        raise Refused(f"run {self.id}: no stage {name!r}; it has {', '.join(s.stage for s in self.stages)}")

    @property
    def outputs(self) -> dict[str, str]:
        """kind -> digest of everything the run has made or reused."""
        return {kind: digest for stage in self.stages for kind, digest in stage.outputs.items()}


def artifacts(owner: str, found: Mapping[str, str]) -> None:
    """Refuse kinds and digests of artifacts that are not what the store calls its folders by."""
    for kind, digest in found.items():
        check_name(owner, kind)
        check_digest(f"{owner}: {kind}", digest, DIGEST_DIGITS)


def _prove_apart(owner: str, paths: Iterable[str]) -> None:
    """Refuse files that cannot lie beside each other: used twice, below another file, or in the manifest's place."""
    files = [MANIFEST, *paths]
    distinct(owner, "file", files)
    known = set(files)
    for path in files:
        parts = path.split("/")
        for count in range(1, len(parts)):
            if (above := "/".join(parts[:count])) in known:
                raise Refused(f"{owner}: file {path!r} would lie inside of file {above!r}; names must differ")
