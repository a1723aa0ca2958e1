"""How a stage is started: `python -m stages.NAME --task task.json`."""

from dataclasses import field
from typing import Any

from fleetune.contracts.record import record


@record
class RunFacts:
    """Of the run that a stage is part of, for what it reports: nothing that is computed depends on them."""

    name: str = ""
    started: str = ""
    code_version: str = ""
    commit: str = ""
    """Empty where the code was not run from a checkout."""
    dirty: bool = False
    settings: str = ""
    """The whole config, as YAML."""

    def listed(self, run: str) -> dict[str, str]:
        """As entries of a report's list; `run` is its id."""
        edited = " with changes since" if self.dirty else ""
        named = {
            "run": run,
            "started": self.started,
            "code": f"fleetune {self.code_version}" if self.code_version else "",
            "commit": self.commit and self.commit + edited,
        }
        return {name: text for name, text in named.items() if text}


@record
class StageTask:
    """The whole of what a stage may read; folders are absolute paths on the machine that runs it."""

    stage: str
    run: str
    seed: int
    config: dict[str, Any]
    """The slice of the run's config that this stage reads."""
    inputs: dict[str, str]
    """kind of artifact -> read-only folder"""
    output: str
    """Folder; the stage writes `output/KIND/...` for each artifact it makes."""
    work: str
    """Folder that outlives an interrupted attempt of the same key (checkpoints to resume from, logs)."""
    earlier: tuple[str, ...] = ()
    """Such folders of unfinished attempts under other keys that this one may go on from."""
    cache: str = ""
    """Folder that outlives runs and keys, for what a stage can use again under other inputs; not made yet, perhaps.
    Empty: none."""
    stored: dict[str, str] = field(default_factory=dict)
    """kind -> read-only folder of what an earlier run measured, for a stage that measures the world."""
    anew: bool = False
    """Nothing in the cache counts: what the stage finds now takes its place."""
    facts: RunFacts = RunFacts()
