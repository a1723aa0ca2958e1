"""What the clients of Weights & Biases and MLflow are told. Stand-ins with their calls take their place here."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from prefect.blocks.system import Secret

from fleetune.contracts.tracking import MlflowRequest, TrackingRequest, WandbRequest
from fleetune.errors import Refused
from flows.trackers import credentials
from flows.trackers.mlflow_run import MlflowRun
from flows.trackers.open import check_installed, open_trackers
from flows.trackers.points import Point
from flows.trackers.wandb_run import WandbRun
from tests.support.flows.run_pages.runs import kept
from tests.support.flows.trackers.runs import TrainingRun

POINTS = [Point(step=0, at_s=1.0, values={"train/loss": 2.0}), Point(step=1, at_s=2.5, values={"train/loss": 1.5})]
AFTER = Point(step=2, at_s=3.0, values={"test/loss": 1.25})
PLANTED = "planted-token-0123456789"


@pytest.fixture(autouse=True)
def blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The Secret blocks of the server, none yet, and no key of whoever runs the tests."""
    kept: dict[str, str] = {}
    monkeypatch.setattr(Secret, "load", lambda name: SimpleNamespace(get=lambda: kept[name]))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for variable in ("WANDB_API_KEY", "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.delenv(variable, raising=False)
    return kept


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls that the stand-in for wandb gets."""
    calls: list[Any] = []

    class Run:
        def log(self, values: dict[str, float]) -> None:
            calls.append(values)

        def finish(self, exit_code: int) -> None:
            calls.append(exit_code)

        def define_metric(self, name: str, step_metric: str) -> None:
            calls.append((name, step_metric))

    def init(**given: Any) -> Run:
        calls.append(given)
        return Run()

    module = ModuleType("wandb")
    module.__dict__.update(init=init, Settings=lambda **given: given)
    monkeypatch.setitem(sys.modules, "wandb", module)
    return calls


class Mlflow:
    """A stand-in for MLflow's client and entities, whose server may be gone."""

    def __init__(self, **given: Any) -> None:
        self.calls: list[Any] = [given]
        self.gone = False

    def get_experiment_by_name(self, name: str) -> None:
        """No experiment exists."""

    def create_experiment(self, name: str) -> str:
        """Make one."""
        self.calls.append(("experiment", name))
        return "7"

    def create_run(self, experiment: str, run_name: str) -> Any:
        """Make a run."""
        self.calls.append(("run", experiment, run_name))
        return SimpleNamespace(info=SimpleNamespace(run_id="abc"))

    def log_batch(self, run: str, metrics: Any = (), params: Any = ()) -> None:
        """Take metrics or parameters."""
        if self.gone:
            raise ConnectionError("no server")
        self.calls += [(run, metric) for metric in metrics]

    def set_terminated(self, run: str, status: str) -> None:
        """End the run."""
        self.calls.append((run, status))


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> Mlflow:
    """The client that every run gets."""
    client = Mlflow()

    def made(**given: Any) -> Mlflow:
        client.calls = [given]
        return client

    module, entities = ModuleType("mlflow"), ModuleType("mlflow.entities")
    module.__dict__.update(MlflowClient=made, entities=entities)
    entities.__dict__.update(Metric=lambda *given: given, Param=lambda *given: given)
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    return client


def test_wandb_is_told_each_value_once(wandb: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds are logged by their number, scores of the end too, and the run is called like Fleetune's."""
    monkeypatch.setenv("WANDB_API_KEY", PLANTED)
    run = TrainingRun(tmp_path / "store")
    tracker = WandbRun(WandbRequest(project="p", entity="team"), run.record, run.store.local / "wandb")
    tracker.update([])
    assert wandb == []
    tracker.update(POINTS)
    tracker.update([*POINTS, AFTER])
    tracker.close("failed")
    given, *calls = wandb
    assert (given["project"], given["entity"], given["id"], given["mode"]) == ("p", "team", "demo-1", "online")
    assert given["config"]["training"]["rounds"] == 60
    assert given["settings"]["api_key"] == PLANTED
    logged = [{"train/loss": 2.0, "round": 0}, {"train/loss": 1.5, "round": 1}, {"test/loss": 1.25, "round": 2}]
    assert calls == [("*", "round"), *logged, 1]


def test_without_a_key_wandb_is_not_called(wandb: list[Any], tmp_path: Path) -> None:
    """The client would ask a terminal for the key; offline it needs none."""
    run = TrainingRun(tmp_path / "store")
    with pytest.raises(Refused, match=r"set WANDB_API_KEY, or make a Secret block wandb-api-key"):
        WandbRun(WandbRequest(project="p"), run.record, tmp_path).update(POINTS)
    assert wandb == []
    WandbRun(WandbRequest(project="p", mode="offline"), run.record, tmp_path).update(POINTS)
    assert wandb[0]["settings"]["api_key"] is None


def test_a_secret_block_is_the_second_place(blocks: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment wins over Prefect's block of the same name."""
    blocks["wandb-api-key"] = "of the block"
    assert credentials.secret("WANDB_API_KEY") == "of the block"
    monkeypatch.setenv("WANDB_API_KEY", "of the environment")
    assert credentials.secret("WANDB_API_KEY") == "of the environment"


def test_mlflow_goes_on_with_the_same_run_after_an_error(mlflow: Mlflow, tmp_path: Path) -> None:
    """A server that is gone in between gets one run, and each value once."""
    run = TrainingRun(tmp_path / "store")
    tracker = MlflowRun(MlflowRequest(uri="http://host:5000", experiment="e"), run.record)
    mlflow.gone = True
    with pytest.raises(ConnectionError):
        tracker.update(POINTS[:1])
    mlflow.gone = False
    tracker.update(POINTS)
    tracker.update([*POINTS, AFTER])
    tracker.close("interrupted")
    assert mlflow.calls == [
        {"tracking_uri": "http://host:5000"},
        ("experiment", "e"),
        ("run", "7", "demo-1"),
        ("abc", ("train/loss", 2.0, 1000, 0)),
        ("abc", ("train/loss", 1.5, 2500, 1)),
        ("abc", ("test/loss", 1.25, 3000, 2)),
        ("abc", "KILLED"),
    ]


def test_no_token_comes_into_the_store(
    wandb: list[Any], mlflow: Mlflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With tokens in the environment and all trackers at work, no file of the store and no config holds one."""
    for variable in ("WANDB_API_KEY", "MLFLOW_TRACKING_TOKEN"):
        monkeypatch.setenv(variable, PLANTED)
    run = TrainingRun(tmp_path / "store")
    asked = TrackingRequest(wandb=WandbRequest(project="p"), mlflow=MlflowRequest(uri="http://host"))
    config = type(run.record.config)(**{**_fields(run.record.config), "tracking": asked})
    record = kept(run.store, "demo-2", config=config)
    for tracker in open_trackers(run.store, record):
        tracker.update(POINTS)
        tracker.close("done")
    files = [path for path in run.store.local.rglob("*") if path.is_file()]
    assert any("tfevents" in path.name for path in files)
    assert not [path for path in files if PLANTED.encode() in path.read_bytes()]
    assert PLANTED not in str(wandb[0]["config"])


def _fields(config: Any) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.__dataclass_fields__}


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        (TrackingRequest(wandb=WandbRequest(project="p")), "wandb"),
        (TrackingRequest(mlflow=MlflowRequest(uri="http://host")), "mlflow"),
    ],
)
def test_a_package_that_is_missing_is_refused_before_the_run(
    asked: TrackingRequest, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks for a tracker without its package learns what to install."""
    monkeypatch.setitem(sys.modules, name, None)  # as where there is none
    with pytest.raises(Refused, match=rf"the package {name} is not installed; install fleetune\[{name}"):
        check_installed(asked)
    check_installed(TrackingRequest())
