"""`python -m benchmarks.families [--quick] [--only TYPE ...] [--write]`: every family of the installed transformers.

Each type of model that transformers can build for a task gets a small random configuration. It is recorded, cut between
all of its units, and trained for two steps beside a loop of plain PyTorch on the whole model.
"""

import argparse
import os
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from benchmarks.families.page import page_of
from benchmarks.families.trials import NAMES, TASKS, TIME_LIMIT_S, Result, run_trial
from benchmarks.report import Figure, Report, progress_printer

PAGE = Path(__file__).parents[2] / "docs" / "families.md"
QUICK = ("bert", "llama", "qwen3_moe", "vit", "t5")
TRIALS_PER_PROCESS = 25
"""A new process takes over then, since libraries keep memory."""


def results(wanted: list[tuple[str, str]], processes: int, kept: Path | None) -> list[Result]:
    """Run all trials that the file `kept` does not have, in processes of their own, and add them to it."""
    lines = kept.read_text().splitlines() if kept is not None and kept.exists() else []
    found = {(each.task, each.model_type): each for each in map(Result.from_json, lines)}
    missing = [trial for trial in wanted if trial not in found]
    report = progress_printer()
    spawn, together = get_context("spawn"), TRIALS_PER_PROCESS * processes
    for first in range(0, len(missing), together):  # max_tasks_per_child would do it, but deadlocks (CPython 115634)
        with ProcessPoolExecutor(processes, mp_context=spawn) as pool:
            for result in pool.map(run_trial, *zip(*missing[first : first + together], strict=True)):
                report(f"{result.task} {result.model_type}: {result.outcome.status}")
                found[result.task, result.model_type] = result
                if kept is not None:
                    with kept.open("a") as file:
                        file.write(result.to_json() + "\n")
    return [found[trial] for trial in wanted]


def figures(found: list[Result]) -> list[Figure]:
    """Count the outcomes."""
    counts = Counter(result.outcome.status for result in found)
    about = {
        "bitwise": "all bits agree with the plain loop",
        "bound": "within 50 times the plain loop's own rounding",
        "refused": "a sentence says why, before training",
        "untried": "no small configuration could be made",
        "differs": "trained, but not as the plain loop",
    }
    return [
        Figure(
            name=name,
            value=float(counts[name]),
            unit="types",
            better="lower" if name in ("refused", "untried", "differs") else "higher",
            target=0.0 if name == "differs" else None,
            about=said,
        )
        for name, said in about.items()
    ]


def main() -> int:
    """Run the trials and print their outcomes; exit code 1 if a family trains otherwise than the plain loop."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.families", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{', '.join(QUICK)} only, within 60 s")
    parser.add_argument("--only", nargs="+", metavar="TYPE", help="these types of model only")
    parser.add_argument("--write", action="store_true", help=f"write the table to {PAGE.name}")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="add outcomes to this file; skip those that it has")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    chosen = arguments.only or (QUICK if arguments.quick else None)
    wanted = [(task, name) for task in TASKS for name in NAMES[task] if chosen is None or name in chosen]
    if not wanted:
        parser.error(f"transformers has no model of type {', '.join(chosen or ())} for {', '.join(TASKS)}")
    if arguments.write and chosen is not None:
        parser.error("--write is for all types; leave --only and --quick out")
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    report = Report("families", arguments.quick)
    found = results(wanted, arguments.processes, arguments.keep)
    report.add(figures(found))
    page = page_of(found)
    if arguments.write:
        PAGE.write_text(page, encoding="utf-8")
    else:
        print(page)
    report.print()
    return 1 if any(result.outcome.status == "differs" for result in found) else 0


if __name__ == "__main__":
    print(f"at most {TIME_LIMIT_S} s for each type of model and task", file=sys.stderr)
    sys.exit(main())
