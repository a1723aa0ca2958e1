"""`python -m tests.support.again [--runs 20] [--busy 4]`: whole runs of the first tier in a row, the second half
beside busy processes; prints how each ended, and exits with 1 if one failed.

A test that fails once in twenty runs without a fault of the product loses a submission a week. Each run's output stays
in a file of its own.
"""

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUSY = [sys.executable, "-c", "while True: pass"]


def main() -> int:
    """Run, and print a line for each run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--busy", type=int, default=4, help="processes beside the second half of the runs")
    parser.add_argument("--logs", type=Path, default=ROOT / "build" / "again")
    asked = parser.parse_args()
    asked.logs.mkdir(parents=True, exist_ok=True)
    failed = 0
    for number in range(asked.runs):
        busy = asked.busy if number >= asked.runs // 2 else 0
        log, began_s = asked.logs / f"{number + 1:02}.log", time.monotonic()
        with processes(busy), log.open("w") as output:
            done = subprocess.run(["make", "test"], cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, check=False)
        ended = [line for line in log.read_text().splitlines() if re.search(r"\d (passed|failed)", line)]
        failed += done.returncode != 0
        beside = f"beside {busy} busy processes" if busy else "alone"
        minutes = (time.monotonic() - began_s) / 60
        said = ended[-1] if ended else f"ended with {done.returncode}, see {log}"
        sys.stdout.write(f"{number + 1:2} {beside}: {minutes:.1f} min, {said}\n")
        sys.stdout.flush()
    return 1 if failed else 0


@contextmanager
def processes(count: int) -> Iterator[None]:
    """Keep so many processes busy."""
    started = [subprocess.Popen(BUSY) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
