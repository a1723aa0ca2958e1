"""Nights of a model that gets better, and what is done with its runs: evaluated again, compared by training."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleetune.store import RunRecord, Store
from flows.comparison import archive
from tests.support.flows.service.client import ServiceClient
from tests.support.flows.service.training import CONFIG

TRAINING = {"rounds": 30, "batch_samples": 16, "micro_batch_samples": 8, "learning_rate": 4e-3}


@dataclasses.dataclass(frozen=True)
class Night:
    """A run of the nightly config as the server and the store show it."""

    state: str
    message: str
    run: RunRecord


class Nights:
    """A run file that trains the last promoted model on with the newest day of a folder."""

    def __init__(self, service: ServiceClient, folder: Path) -> None:
        self.service, self.folder = service, folder
        self.file = folder / "nightly.yaml"
        (folder / "days").mkdir()

    def day(self, day: int) -> None:
        """Add the data of one day."""
        rows = [{"text": f"{i + day} {word} " * 3, "label": word} for i in range(24) for word in ("red", "green")]
        (self.folder / "days" / f"2026-11-{day}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def set(self, **promote: Any) -> None:
        """Write the run file."""
        plain = {
            **CONFIG,
            "name": "night",
            "fleet": {"devices": [{"name": "a"}, {"name": "b"}]},
            "data": {"source": "days", "newest_files": 1, "max_length": 16},
            "training": TRAINING,
            "strategy": {"name": "single"},
            "promote": {"score": "loss", **promote},
        }
        self.file.write_text(yaml.safe_dump(plain))

    def night(self) -> Night:
        """Run what the schedule of the run file would run."""
        self.service.idle()
        flow_run = self.service.start(base=str(self.file))
        ended = self.service.ended(flow_run)
        assert ended["state_type"] == "COMPLETED", ended["state"]["message"]
        base, store = ended["parameters"]["base"], Store(self.service.root)
        run = store.runs.load("latest" if base == str(self.file) else base)
        return Night(state=ended["state_name"], message=ended["state"]["message"], run=run)


@pytest.fixture(scope="module")
def nights(service: ServiceClient, tmp_path_factory: pytest.TempPathFactory) -> list[Night]:
    """Three nights: on the first day's data; on the second day's, with more demanded than can be; and once more."""
    made = Nights(service, tmp_path_factory.mktemp("nights"))
    made.day(21)
    made.set()
    first = made.night()
    made.day(22)
    made.set(least_gain=1000.0)
    return [first, made.night(), made.night()]


def test_how_nights_end(service: ServiceClient, nights: list[Night]) -> None:
    """A better model is promoted; the next night starts from it with the newest data, and is not when it is no better;
    a night that could only repeat the last one trains nothing. Each says what to do next."""
    first, second, third = nights
    assert [night.state for night in nights] == ["Promoted", "NotBetter", "NothingNew"]
    assert first.message.endswith(f"fleetune models --root {service.root}")
    assert second.message.endswith(f"fleetune show {second.run.id} --root {service.root}")
    assert second.run.id in third.message and third.run.id == second.run.id, "it has left no run"
    checkpoint = service.root / "artifacts" / "checkpoint" / first.run.outputs["checkpoint"]
    assert second.run.config.model.source == str(checkpoint / "model")
    assert second.run.outputs["data"] != first.run.outputs["data"], "the newest day's"
    listed = service.command("models").stdout
    assert first.run.id in listed and second.run.id not in listed


def test_a_trained_model_is_evaluated_again(service: ServiceClient, nights: list[Night]) -> None:
    """`evaluate` scores the checkpoint of a past run on other data, without a device and without training."""
    past = nights[1].run
    flow_run = service.start("evaluate", run=past.id, changes=["data.newest_files=2"])
    ended = service.ended(flow_run)
    assert ended["state_name"] == "Completed", ended["state"]["message"]
    assert ended["name"] == "night · evaluated again on days" and ended["parameters"]["run"] == past.id
    service.expect_tasks(flow_run, evaluate="Completed")
    assert set(service.tasks(flow_run)) == {"finetune-0", "evaluate"}, "the data are prepared in a run of their own"
    store = Store(service.root)
    made = store.runs.all()[0]
    assert made.kind == "evaluation" and store.runs.load("latest").id == past.id, "it stays the run that was trained"
    assert made.outputs["evaluation"] != past.outputs["evaluation"]
    assert made.stages[0].inputs["checkpoint"] == past.outputs["checkpoint"]
    assert made.stages[0].inputs["data"] != past.outputs["data"]


def test_strategies_are_compared_by_training(service: ServiceClient, nights: list[Night]) -> None:
    """`compare` with `train` measures every strategy, on one fleet, and reuses a training that is stored; its answer is
    by measurement, and its artifact shows it."""
    past = nights[1].run
    flow_run = service.start("compare", base=past.id, strategies=["single", "dp"], train=True)
    ended = service.ended(flow_run)
    assert ended["state_name"] == "Completed", ended["state"]["message"]
    assert re.search("Measured, .* (was|were) the first at loss", ended["state"]["message"]), ended["state"]["message"]
    found = archive.every(Store(service.root))[0]
    assert {row.name for row in found.strategies if row.measured} == {"single", "dp"}
    single = Store(service.root).runs.load(found.strategies[0].run)
    assert single.stage("train").how == "reused", single.stage("train").why
    asked = {"artifacts": {"flow_run_id": {"any_": [flow_run]}}}
    (shown,) = service.call("POST", "/artifacts/filter", asked)
    answer, _, next_command = ended["state"]["message"].partition("; next: ")
    assert shown["description"] == answer and single.id in shown["data"] and " show " in next_command
