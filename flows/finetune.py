"""The way in to the pipeline: a config in, a run record out.

`run` proves the config first and starts Prefect only when there is something to conduct: an embedded server whose
home lies in the store, unless the user has set PREFECT_API_URL or PREFECT_HOME. The flow itself, for deployments, is
`flows/pipeline.py:finetune`.
"""

import tempfile
from pathlib import Path
from typing import Any

from fleetune.contracts import wire
from fleetune.contracts.config.run import RunConfig
from fleetune.errors import Refused, TryAgain
from fleetune.store import RunRecord, Store
from flows import server
from flows.events import Listen, StageEvent, nobody
from flows.foresee import foresee
from flows.runner import Runner
from flows.setting import Setting, Wish


def run(
    config: RunConfig, *, root: Path, wish: Wish | None = None, dry_run: bool = False, listen: Listen = nobody
) -> RunRecord:
    """Run the pipeline by `config` with its store at `root`; the record that is also in the store.

    `dry_run`: say what would happen (state `planned`), write nothing. Raises the FleetuneError of the stage that
    failed; the record in the store then says which one and why.
    """
    return run_with(Setting(store=Store(root), listen=listen), config, wish or Wish(), dry_run)


def run_with(setting: Setting, config: RunConfig, wish: Wish, dry_run: bool = False) -> RunRecord:
    """`run`, conducted with a setting of the caller's."""
    runner = Runner(setting, config, wish)
    planned = foresee(runner)  # refuses what cannot be reused, before anything is started
    if dry_run:
        return planned
    setting.listen(StageEvent(stage="run", kind="note", text="starting the pipeline engine"))
    _prove_writable(setting.store.local)
    server.ensure(setting.store.local / "prefect")
    with runner:
        _through_prefect(runner)
    if runner.error is not None:
        raise runner.error
    return runner.record


def _prove_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise Refused(f"--root {folder}: cannot be written to ({error.strerror}); choose another folder") from None


def _through_prefect(runner: Runner) -> None:
    from prefect import flow

    from flows.pipeline import perform

    @flow(name="finetune", flow_run_name=runner.record.id, persist_result=False, validate_parameters=False)
    def finetune(config: dict[str, Any]) -> Any:
        return perform(runner)

    state: Any = finetune(wire.dump(runner.config), return_state=True)
    if not state.is_completed() and runner.error is None:
        raise TryAgain(f"the engine ended the run without a stage at fault ({state.message}); run it again to go on")


def __getattr__(name: str) -> Any:
    """`flows.finetune.finetune` is the Prefect flow; Prefect is imported when it is asked for."""
    if name == "finetune":
        from flows.pipeline import finetune

        return finetune
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
