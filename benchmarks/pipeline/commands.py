"""Times of commands, each in a fresh process, and the speed of hashing a run's files."""

import dataclasses
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.report import Figure, median_and_spread
from fleetune.store import RunRecord, StageRecord, Store
from flows import configs
from stages.catalog import STAGES

HELP_S, RUNS_S, VERIFY_MB_PER_S = 0.3, 1.0, 500.0
COMMAND = (sys.executable, "-c", "from flows.cli import main; main()")
CONFIG = Path("configs/runs/demo.yaml")
BLOCK = 1 << 20


def fleetune(*words: str) -> float:
    """Seconds that a command of `fleetune` takes; CalledProcessError when it fails."""
    started_s = time.perf_counter()
    subprocess.run([*COMMAND, *words], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started_s


def help_time(repeats: int) -> Figure:
    """`fleetune --help` in a fresh process."""
    fleetune("--help")  # compiles the sources
    times_s = [fleetune("--help") for _ in range(repeats)]
    return Figure(name="help", **median_and_spread(times_s), unit="s", target=HELP_S, better="lower",
                  about="fleetune --help")  # fmt: skip


def runs_time(root: Path, count: int, repeats: int) -> Figure:
    """`fleetune runs` over `count` runs of every stage."""
    make_runs(Store(str(root)), count)
    fleetune("runs", "--root", str(root))
    times_s = [fleetune("runs", "--root", str(root)) for _ in range(repeats)]
    return Figure(name="runs", **median_and_spread(times_s), unit="s", target=RUNS_S, better="lower",
                  about=f"fleetune runs, over {count} runs")  # fmt: skip


def make_runs(store: Store, count: int) -> None:
    """Write records of finished runs, as large as those of the demo."""
    stages = tuple(
        StageRecord(
            stage=spec.name,
            key=f"{place:064x}",
            state="done",
            how="ran",
            why="ran: never run before",
            inputs={kind: "0" * 32 for kind in spec.inputs},
            outputs={kind: "0" * 32 for kind in spec.outputs},
        )
        for place, spec in enumerate(STAGES)
    )
    first = RunRecord(
        id="first",
        config=configs.load(CONFIG),
        seed=1,
        code_version="0.1.0",
        state="done",
        started="2026-01-01T00:00:00+00:00",
        ended="2026-01-01T00:01:00+00:00",
        stages=stages,
    )
    for place in range(count):
        store.runs.save(dataclasses.replace(first, id=f"demo-20260101-{place:06d}-0000"))


def verify_speed(root: Path, size_bytes: int, repeats: int) -> Figure:
    """Speed at which `fleetune verify` hashes an artifact that is in the page cache."""
    store = Store(str(root))
    made = root / "made"
    made.mkdir(parents=True)
    block = bytes(range(256)) * (BLOCK // 256)
    with (made / "weights.bin").open("wb") as file:
        for _ in range(size_bytes // BLOCK):
            file.write(block)
    digest = store.put("model", made, stage_key="0" * 64, inputs={})
    speeds = []
    for _ in range(repeats):
        started_s = time.perf_counter()
        store.verify("model", digest)
        speeds.append(size_bytes / 1e6 / (time.perf_counter() - started_s))
    return Figure(name="verify", **median_and_spread(speeds), unit="MB/s", target=VERIFY_MB_PER_S, better="higher",
                  about=f"one file of {size_bytes / 1e6:.0f} MB, read before")  # fmt: skip
