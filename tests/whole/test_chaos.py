"""A short `fleetune chaos` on real devices; `make chaos` is the long one."""

import json
from pathlib import Path

import yaml

from fleetune.contracts.run_config import RunConfig
from fleetune.store import RunRecord, Store
from flows import configs
from flows.chaos.rehearsal import ChaosRequest, rehearse
from flows.context import RunContext, StageSelection
from flows.runner import Runner
from flows.without_prefect import run_without_prefect
from tests.support.whole.pipelines import CONFIG

SEED, ROUNDS = 6, 8
"""Draw a cut, a kill and the end of the coordinator."""


def test_a_training_with_faults_ends_as_one_without(tmp_path: Path) -> None:
    """Every kind of loss in one training: its rounds, losses and weights are those of the other, and nothing is left,
    neither processes nor files.
    """
    rows = [{"text": f"{i} {word} " * (1 + i % 4), "label": word} for i in range(40) for word in ("red", "green")]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    training = {**CONFIG["training"], "rounds": ROUNDS}
    devices = [{"name": name, "emulate": {"cores": 0.5}} for name in "abc"]
    (tmp_path / "small.yaml").write_text(
        yaml.safe_dump({**CONFIG, "fleet": {"devices": devices}, "training": training})
    )

    def run_with(context: RunContext, config: RunConfig, selection: StageSelection) -> RunRecord:
        return run_without_prefect(Runner(context, config, selection))

    config = configs.load(tmp_path / "small.yaml")
    report = rehearse(RunContext(store=Store(tmp_path / "runs")), config, ChaosRequest(faults=3, seed=SEED), run_with)
    assert report.ok, report
    assert {row.kind for row in report.faults} >= {"kill", "cut"} and report.starts == 2, report.faults
    assert report.throughput is not None and 0 < report.throughput.ratio < report.throughput.ratio_of_devices, report
    assert not (tmp_path / "runs" / "chaos" / report.run).exists()
