"""Facts that an agent reports about its machine."""

import os

import pytest

from fleetune.discovery.machine_facts import inspect_machine


def test_limits_never_exceed_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits never exceed the machine; only containers report an image."""
    monkeypatch.delenv("FLEETUNE_IMAGE", raising=False)
    found = inspect_machine("cpu")
    assert 0 < found.cores <= found.machine_cores == len(os.sched_getaffinity(0))
    assert 0 < found.memory_bytes <= found.machine_memory_bytes
    assert (found.image, found.accelerators) == ("", ())
    monkeypatch.setenv("FLEETUNE_IMAGE", "sha256:7")
    assert inspect_machine("cpu").image == "sha256:7"
