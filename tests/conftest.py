"""Tiers, processes and order of the tests, and what a run of all of them shows; signals; property tests without a
deadline.

Tests of a file stay together, and those of containers too, since they share an engine; what took longest when all was
measured comes first, lest one process be left alone with it.
"""

import gc
import os
import shutil
import signal
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from fleetune.launching.job import SPIN_COUNT
from tests.support import left_out, made_once
from tests.support.cpu import Cpu
from tests.support.left_out import LeftOut
from tests.support.tiers import Tiers, changed_since, read_rules
from tests.support.whole_run import WholeRun, keep_measured, measured_seconds

TOGETHER = ("tests/engine/", "tests/browser/")
"""Folders whose tests run in one process, one after another."""
SERVICES = "tests/flows/service/"
"""Each process has a service for the files of this folder, as long as it runs one after another of them."""

# Else a third of the collection goes into searching a million permanent objects for garbage.
gc.set_threshold(100_000, 50, 100)

# An example that a busy machine takes from the processor for 200 ms is no fault of what it tests.
settings.register_profile("any pace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# A change must pass what its like passed: what is drawn anew, in test-all, finds faults that a change did not bring.
settings.register_profile("same examples", settings.get_profile("any pace"), derandomize=True, database=None)
settings.load_profile("any pace")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of `make test` and `make test-all`."""
    group = parser.getgroup("fleetune")
    group.addoption("--first-tier", action="store_true", help="leave out what tests/tiers.toml lists")
    group.addoption(
        "--changed-since", default="", metavar="COMMIT", help="of that, run what has changed since a commit"
    )
    group.addoption("--whole-run", action="store_true", help="show one line a minute, and a table at the end")
    group.addoption("--cpu", default="", metavar="FILE", help="keep each test's processor seconds in a file (JSON)")
    group.addoption("--keep-measured", action="store_true", help="keep each test's seconds in tests/measured.json")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Hear Ctrl-C even if started in a shell's background, where it is ignored: children inherit that, and some tests
    send it to them. Draw examples, and show a run, as its options say. Threads of torch leave a busy core soon."""
    os.environ.setdefault("GOMP_SPINCOUNT", str(SPIN_COUNT))  # as in workers; read when torch is imported
    if (made := made_once.begin()) is not None:
        config.add_cleanup(lambda: shutil.rmtree(made, ignore_errors=True))
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--first-tier"):
        settings.load_profile("same examples")
    if config.getoption("--cpu"):
        config.pluginmanager.register(Cpu(config), "cpu")
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and config.getoption("--whole-run") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(WholeRun(reporter), "whole-run")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Mark what is slow, leave out the second tier before folders look what they lack, and sort by file; the order
    within a file stays."""
    known = measured_seconds()
    for item in items:
        if item.nodeid in known["tests"]:
            item.add_marker("slow")
    if config.getoption("--first-tier"):
        _leave_out_second_tier(config, items)
    yield
    order = {file: _place(file, known["files"]) for file in {item.nodeid.split("::")[0] for item in items}}
    items.sort(key=lambda item: (order[file := item.nodeid.split("::")[0]], file))


def pytest_collection_finish() -> None:
    """Leave out of later searches for garbage what was made so far, and search less often than by default, which took
    a thirtieth of all processor time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


def _place(file: str, seconds: Mapping[str, float]) -> tuple[float, ...]:
    """Return where a file comes: what one process runs for minutes, then services, then what took longest."""
    together = next((folder for folder in TOGETHER if file.startswith(folder)), "")
    if together:
        return (
            0,
            -sum(taken for other, taken in seconds.items() if other.startswith(together)),
            TOGETHER.index(together),
        )
    return 1 if file.startswith(SERVICES) else 2, -seconds.get(file, 0.0)


def _leave_out_second_tier(config: pytest.Config, items: list[pytest.Item]) -> None:
    since = config.getoption("--changed-since")
    tiers = Tiers(read_rules(), changed_since(since) if since else (), slow=measured_seconds()["tests"])
    rules = {item: rule for item in items if (rule := tiers.left_out(item.nodeid)) is not None}
    for rule in dict.fromkeys(rules.values()):
        ours = [item for item, its in rules.items() if its is rule]
        what = "other folders, slow ones" if rule.slow else rule.tests
        said = LeftOut(tests=len(ours), what=what, why=rule.why, how="make test-all")
        left_out.leave_out(config, items, ours, said)
    for file, why in tiers.brought_back.items():
        if why:
            left_out.say(config, f"all of {file} is run, since {why} has changed")


def scope_of(test: str) -> str:
    """Return what the tests have in common that are run by one process."""
    file = test.split("::")[0]
    return next((folder for folder in TOGETHER if file.startswith(folder)), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each process what belongs together."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid)

    return Scheduler(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """To have left everything out is no failure where it is allowed; whoever started this process is told of it."""
    left_out.hand_over(session.config)
    listed = left_out.listed(session.config)
    if any(each.required for each in listed):
        session.exitstatus = pytest.ExitCode.USAGE_ERROR
    elif exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and listed:
        session.exitstatus = pytest.ExitCode.OK


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Take over what a process has left out."""
    left_out.take_over(node.config, getattr(node, "workeroutput", {}))


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Show the table, or only what was left out."""
    shown = config.pluginmanager.get_plugin("whole-run")
    listed = left_out.listed(config)
    if shown is None:
        lines = [str(each) for each in listed]
    else:
        lines = [*shown.table(listed), *left_out.said(config)]
        if config.getoption("--keep-measured"):
            keep_measured(shown.seconds())
    for line in lines:
        terminalreporter.write_line(line)
