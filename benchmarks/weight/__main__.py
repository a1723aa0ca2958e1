"""`python -m benchmarks.weight [--quick]`: how much there is to read, in all and to follow a round and a recovery.

Lines, files, functions and classes of each package are counted in its text. What a committed round and a recovery
enter is traced in a training of four processes, since no text tells it.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from benchmarks.entry_point import measure_and_print
from benchmarks.report import Figure
from benchmarks.weight.sources import LIBRARY, package_sizes, total
from benchmarks.weight.walks import training_walks

PROCESS_FILES, RECOVERY_FILES = 25, 45
WHOLE_LIBRARY = f"all of {LIBRARY}/"
LIBRARY_LINES, LIBRARY_FUNCTIONS = 44_000, 2_400


def measure(folder: Path, quick: bool, report_progress: Callable[[str], None]) -> Iterator[Figure]:
    """Yield all figures; in short they are the same."""
    sizes = package_sizes()
    for package, size in sizes.items():
        yield from _cells("Packages", package, asdict(size))
    library = total(size for package, size in sizes.items() if package.split("/")[0] == LIBRARY)
    yield from _cells("Packages", WHOLE_LIBRARY, asdict(library))
    yield from _cells("Packages", "all", asdict(total(sizes.values())))
    report_progress("a training of four processes that loses one")
    walks = training_walks(folder)
    shown = {
        "round, worker": walks.worker,
        "round, coordinator": walks.coordinator,
        "round, both": walks.round,
        "recovery, all processes": walks.recovery,
    }
    for row, walk in shown.items():
        counts = {"files": len(walk.files), "functions": len(walk.functions), "moves between files": walk.moves}
        yield from _cells("Entered", row, counts)
    files = {
        "worker_files": (walks.worker, PROCESS_FILES, "that a round enters in a worker"),
        "coordinator_files": (walks.coordinator, PROCESS_FILES, "that a round enters in the coordinator"),
        "recovery_files": (walks.recovery, RECOVERY_FILES, "that a kill and its recovery enter in all processes"),
    }
    for name, (walk, most, about) in files.items():
        yield Figure(name=name, value=len(walk.files), unit="files", target=most, better="lower", about=about)
    for unit, value, most in (
        ("lines", library.lines, LIBRARY_LINES),
        ("functions", library.functions, LIBRARY_FUNCTIONS),
    ):
        yield Figure(name=f"library_{unit}", value=value, unit=unit, target=most, better="lower", about=WHOLE_LIBRARY)


def _cells(sheet: str, row: str, counts: Mapping[str, int]) -> Iterator[Figure]:
    for column, value in counts.items():
        cell = (sheet, row, column)
        yield Figure(name=f"{row} {column}", value=value, unit=column, better="lower", cell=cell)


if __name__ == "__main__":
    sys.exit(measure_and_print("weight", __doc__, "the same: it is all counted in a minute", measure))
