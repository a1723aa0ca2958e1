"""Records of runs whose artifacts are in no store."""

from fleetune.contracts.run_config import DataRequest, ModelRequest, RunConfig
from fleetune.contracts.training_request import TrainingRequest
from fleetune.store import RunRecord, StageRecord

CONFIG = RunConfig(
    name="small",
    model=ModelRequest(task="causal-lm", source="somewhere"),
    data=DataRequest(source="digits"),
    training=TrainingRequest(rounds=1),
)


def a_run(name: str, started: str, state: str = "done") -> RunRecord:
    """A run record with one stage."""
    return RunRecord(
        id=name,
        config=CONFIG,
        seed=0,
        code_version="1",
        state=state,
        started=started,
        stages=(StageRecord(stage="plan", outputs={"plan": "b0" * 16}),),
    )
