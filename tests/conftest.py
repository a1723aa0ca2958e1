"""Signals, property tests without a deadline, and the order of test files: those of services, then those with most slow
tests, lest one worker be left alone with one."""

import signal
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

SERVICES = Path(__file__).parent / "flows" / "service"

# An example that a busy machine takes from the processor for 200 ms is no fault of what it tests.
settings.register_profile("any pace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any pace")


def pytest_configure() -> None:
    """Hear Ctrl-C even if started in a shell's background, where it is ignored: children inherit that, and some tests
    send it to them."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort by file; the order within a file stays, and so do its fixtures. Each worker's service is needed no more once
    its files have been run, and takes a tenth of a core as long as it lives."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: (SERVICES not in item.path.parents, -slow[item.path]))
