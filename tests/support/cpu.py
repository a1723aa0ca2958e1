"""What `--cpu FILE` measures: seconds of processor time of each test, with those of its children that ended.

Unlike seconds by the clock they are the same beside other work: `pytest -n 1 --cpu /tmp/models.json tests/models`.
"""

import json
import resource
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.whole_run import part_of

COLLECTION, LIVING, REST, GIVING = "collection", "children that live on", "between tests", "giving out tests"


class Cpu:
    """Adds up one process; the one that started it adds up all."""

    def __init__(self, config: pytest.Config) -> None:
        self._seconds = defaultdict[str, float](float)
        self._output: dict[str, Any] | None = getattr(config, "workeroutput", None)
        self._given = bool(config.getoption("dist", "no") != "no")

    def pytest_collection_finish(self) -> None:
        """Imports and collection are over."""
        self._seconds[COLLECTION] = used_s()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Measure a test with its fixtures."""
        before = used_s()
        result = yield
        self._seconds[item.nodeid] += used_s() - before
        return result

    def pytest_sessionfinish(self) -> None:
        """Hand over what this process has measured."""
        if self._output is None and self._given:
            self._seconds[GIVING] = time.process_time()
            return
        self._seconds[REST] = used_s() - sum(self._seconds.values())
        for child in psutil.Process().children(recursive=True):
            times = child.cpu_times()
            self._seconds[LIVING] += times.user + times.system + times.children_user + times.children_system
        if self._output is not None:
            self._output["cpu"] = dict(self._seconds)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add what another process has measured."""
        for what, seconds in getattr(node, "workeroutput", {}).get("cpu", {}).items():
            self._seconds[what] += seconds

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        """Keep the seconds of all tests, and show those of folders."""
        seconds = {what: round(taken, 3) for what, taken in sorted(self._seconds.items(), key=lambda each: -each[1])}
        Path(config.getoption("--cpu")).write_text(json.dumps(seconds, indent=0) + "\n", encoding="utf-8")
        parts = Counter[str]()
        for what, taken in seconds.items():
            parts[part_of(what) if "::" in what else what] += taken  # type: ignore[assignment]
        for part, taken in [*parts.most_common(), ("all", parts.total())]:
            terminalreporter.write_line(f"{taken:9.1f} s of processor time: {part}")


def used_s() -> float:
    """Return the processor time of this process and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime
