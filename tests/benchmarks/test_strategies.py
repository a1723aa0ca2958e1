"""The benchmark of the strategies: its figures come from artifacts, and what cannot be measured says why."""

import subprocess
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from benchmarks.strategies.accuracy import Accuracy, Compared, compared, single_sets
from benchmarks.strategies.chain import ADDED, ChainTraining, NoHistory, code_before, train_by_turns
from benchmarks.strategies.rounds import round_figures
from benchmarks.strategies.runs import STRATEGIES, Trained, trained
from benchmarks.strategies.saved_bytes import linearity, saved_bytes_by_depth
from fleetune.contracts.run_config import STRATEGIES as KNOWN
from flows import configs
from tests.support.drawing.contents import by_hand
from tests.support.links.ends import until


def test_saved_bytes_grow_by_the_same_amount_with_every_block(tmp_path: Path) -> None:
    """Training the k-th block from the end saves k times what the last one saves; nothing below is saved."""
    saved = saved_bytes_by_depth(tmp_path, blocks=3, samples=1)
    assert saved[0] > 0 and linearity(saved) < 0.01
    assert saved[2] / saved[0] == pytest.approx(3, rel=0.1)
    assert linearity([1, 2, 3, 8]) > 0.1


def test_errors_are_of_the_measured_median() -> None:
    """A forecast of 2 s for rounds of 1.5, 2.5 and 9 s is a fifth too low."""
    made = by_hand("lanes")
    run = Trained(
        strategy="x",
        plan=made.plan,
        forecast=replace(made.forecast, round_s=2.0),
        rounds_s=(1.5, 9.0, 2.5),
        between_commits_s=3.0,
        average_share_s=1.0,
        sent_bytes=3_000_000,
    )
    found = {figure.name: figure for figure in round_figures(run)}
    assert found["x_forecast_error"].value == pytest.approx(0.2) and not found["x_forecast_error"].ok
    assert found["x_bias"].value == pytest.approx(-0.2)
    assert found["x_samples_per_s"].value == 4 * 8 / 4.0, "8 samples in each of 4 lanes"


def test_one_device_trains_the_batch_of_the_run_file() -> None:
    """The comparison is one device, dense; what is lost is lost to the run file's own batch, and the figure with as
    many samples as all lanes have stands beside it."""
    config = configs.load(Path("configs/runs/split-learning.yaml"), list(single_sets("split-learning", 32)))
    assert (config.strategy.name, len(config.fleet.devices), config.training.batch_samples) == ("single", 1, 32)
    pairs = [
        Compared(_accuracy(0.60), _accuracy(0.61), _accuracy(0.70)),
        Compared(_accuracy(0.50), _accuracy(0.57), _accuracy(0.60)),
    ]
    found = {each.name: each for each in compared("x", pairs)}
    assert found["x_accuracy_lost"].value == pytest.approx(0.04) and not found["x_accuracy_lost"].ok
    assert found["x_accuracy_one_device_as_many_samples"].value == pytest.approx(0.65)
    assert set(STRATEGIES) < set(KNOWN)


def _accuracy(after: float) -> Accuracy:
    return Accuracy(before=0.1, after=after, round_samples=32, batch_samples=16)


CHAIN_DRIVER = """
import subprocess, sys
print("ready", flush=True)
sys.stdin.read()
counter = "while True: print(1, flush=True)"
worker = subprocess.Popen([sys.executable, "-c", counter], stdout=subprocess.PIPE)
for _ in range(int(sys.argv[2])):
    worker.stdout.readline()
    print("round", flush=True)
worker.wait()
"""


def test_a_training_of_the_chain_stands_still_but_for_its_slices(tmp_path: Path) -> None:
    """Between slices its process and those that it started are stopped, and that time counts for no round; it ends
    with all of them."""
    (tmp_path / "driver.py").write_text(CHAIN_DRIVER)
    trainings = [ChainTraining(tmp_path, tmp_path / name, 10**6, tmp_path / "driver.py") for name in "ab"]
    for training in trainings:
        training.prepare()
    train_by_turns(trainings, blocks=2)
    processes = [process for training in trainings for process in training.processes]
    until(lambda: [process.status() for process in processes] == [psutil.STATUS_STOPPED] * 4)
    for training in trainings:
        assert len(training.blocks_s(2)) == 2 and 0 < sum(training.blocks_s(2)) <= training.ran_s
        training.close()
    assert psutil.wait_procs(processes, 30)[1] == []


def test_without_history_the_chain_says_what_it_needs(tmp_path: Path) -> None:
    """No repository, and a repository that starts after the change: a sentence, not a traceback."""
    with pytest.raises(NoHistory, match="whole history"):
        code_before(tmp_path / "a", root=tmp_path)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    with pytest.raises(NoHistory, match="whole history"):
        code_before(tmp_path / "b", root=tmp_path)


def test_the_code_before_is_the_parent_of_the_first_commit_that_has_the_file(tmp_path: Path) -> None:
    """Files of the commit before are extracted, and none of a later one."""
    root = tmp_path / "clone"

    def git(*arguments: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        subprocess.run(["git", "-C", str(root), *who, *arguments], check=True, capture_output=True)

    root.mkdir()
    git("init", "-q")
    for name in ("old.py", ADDED, "new.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")
        git("add", ".")
        git("commit", "-q", "-m", name)
    code_before(tmp_path / "before", root)
    assert [path.name for path in (tmp_path / "before").rglob("*.py")] == ["old.py"]


def test_a_run_file_is_trained_and_read(tmp_path: Path) -> None:
    """The pipeline on processes: rounds, commits, bytes and a forecast, of two lanes."""
    small = {
        "model": "vit-tiny",
        "data": "digits",
        "training.rounds": "6",
        "training.checkpoint_every_rounds": "100",
    }
    run = trained("split-learning", tmp_path, [f"{key}={value}" for key, value in small.items()], lambda sentence: None)
    assert len(run.rounds_s) == 4 and run.average_share_s > 0
    assert run.samples_per_s * (run.between_commits_s + run.average_share_s) == pytest.approx(32)
    assert run.between_commits_s > 0 and run.sent_bytes > 0 and run.forecast.round_s > 0
