"""`python -m tests.support.flows.through_prefect WORLD ROOT`: the toy pipeline as a flow on an embedded server.

Runs it twice, then with a failing stage, and prints the states that Prefect shows as JSON."""

import json
import sys
from pathlib import Path

from fleetune.errors import FleetuneError
from flows.api import run_with
from flows.context import StageSelection
from tests.support.flows.toy_pipeline import World, toy_context


def main(world: World, root: Path) -> None:
    """Run the flow three times and read the states from the server."""
    report: dict[str, object] = {}
    first = run_with(toy_context(root), world.config(), StageSelection())
    second = run_with(toy_context(root), world.config(), StageSelection())
    world.set("fail-score", "65")
    try:
        run_with(toy_context(root), world.config(learning_rate=0.5), StageSelection())
    except FleetuneError as error:
        report["error"] = [error.exit_code, str(error)]
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        flows = {run.id: run.parameters["base"] for run in client.read_flow_runs()}
        states = {(flows[run.flow_run_id], run.name): run.state_name for run in client.read_task_runs()}
        report["flow states"] = sorted(str(run.state_name) for run in client.read_flow_runs())
    for name, record in (("first", first), ("second", second)):
        report[name] = {stage.stage: states.get((record.id, stage.stage)) for stage in record.stages}
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main(World(Path(sys.argv[1])), Path(sys.argv[2]))
