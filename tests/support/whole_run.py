"""What `make test` shows of a run: one line a minute, every failure at once, and at the end a table of what ran, what
was left out and why."""

import json
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tests.support.left_out import LeftOut

MEASURED = Path(__file__).parents[1] / "measured.json"
SLOW_S = 1.5
"""Seconds of the tests that carry the marker `slow`."""
LINE_S = 60.0


class WholeRun:
    """Counts what ends, in the process that shows it."""

    def __init__(self, reporter: pytest.TerminalReporter, line_s: float = LINE_S) -> None:
        self._reporter, self._line_s = reporter, line_s
        self._began_s = time.monotonic()
        self._ended = Counter[str]()
        """Part -> tests."""
        self._failed = Counter[str]()
        self._seconds = defaultdict[str, float](float)
        """Test -> its seconds, with fixtures."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tell, name="minutes", daemon=True)

    def pytest_sessionstart(self) -> None:
        """Begin to tell."""
        self._thread.start()

    def pytest_sessionfinish(self) -> None:
        """Tell no more."""
        self._over.set()

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Show no letter for a test."""
        if report.passed and report.when == "call":
            return "passed", "", "PASSED"
        if report.failed:
            return ("failed" if report.when == "call" else "error"), "", "FAILED"
        return None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test; tell of one that failed."""
        self._seconds[report.nodeid] += report.duration
        if report.when == "call" or not report.passed:
            self._ended[part_of(report.nodeid)] += 1
        if report.failed:
            self._failed[part_of(report.nodeid)] += 1
            self._reporter.write_line(f"{self._minutes()}: FAILED {report.nodeid}")

    def seconds(self) -> dict[str, float]:
        """Return test -> its seconds."""
        return dict(self._seconds)

    def table(self, left_out: list[LeftOut]) -> list[str]:
        """Return the lines of the table."""
        of_part = Counter[str]()
        for test, seconds in self._seconds.items():
            of_part[part_of(test)] += seconds  # type: ignore[assignment]
        width = max((len(part) for part in self._ended), default=0)
        lines = [f"{'':{width}}  passed  failed  seconds"]
        for part, ended in sorted(self._ended.items()):
            failed = self._failed[part]
            lines.append(f"{part:{width}}  {ended - failed:6}  {failed or '-':>6}  {of_part[part]:7.0f}")
        for each in left_out:
            error = "ERROR, required but " if each.required else ""
            lines += [
                f"{error}left out: {each.tests} tests of {each.what}",
                f"    {each.why}",
                f"    run by: {each.how}",
            ]
        return lines

    def _tell(self) -> None:
        while not self._over.wait(self._line_s):
            failed = sum(self._failed.values())
            ended = sum(self._ended.values())
            self._reporter.write_line(f"{self._minutes()}: {ended} tests have ended, {failed} of them failed")

    def _minutes(self) -> str:
        return f"{(time.monotonic() - self._began_s) / 60:.0f} min"


def part_of(test: str) -> str:
    """Return the folder of tests that a node id belongs to."""
    parts = test.split("::")[0].split("/")
    return "/".join(parts[1:3] if parts[1:2] == ["flows"] and len(parts) > 3 else parts[1:2])


def measured_seconds() -> dict[str, dict[str, float]]:
    """Return the seconds of files, and of tests that take SLOW_S or more, when all tests were last measured."""
    found: dict[str, dict[str, float]] = json.loads(MEASURED.read_text()) if MEASURED.exists() else {}
    return {"files": {}, "tests": {}, **found}


def keep_measured(seconds: dict[str, float]) -> None:
    """Keep the seconds of these tests, and of others in files that they are not of."""
    known = measured_seconds()
    files = Counter[str]()
    for test, taken in seconds.items():
        files[test.split("::")[0]] += taken  # type: ignore[assignment]
    tests = {test: taken for test, taken in known["tests"].items() if test.split("::")[0] not in files}
    tests |= {test: taken for test, taken in seconds.items() if taken >= SLOW_S}
    text = {
        "files": {file: round(taken, 1) for file, taken in sorted((known["files"] | dict(files)).items())},
        "tests": {test: round(taken, 1) for test, taken in sorted(tests.items())},
    }
    MEASURED.write_text(json.dumps(text, indent=0) + "\n", encoding="utf-8")
