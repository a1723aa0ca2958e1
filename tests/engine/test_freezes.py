"""Containers that freeze: they are ended as if they had died, and others are not."""

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from fleetune.launching.docker.sites import DockerSites
from fleetune.launching.job import SILENT_CODE
from tests.support.engine.places import contained, grounds, ignored, python
from tests.support.launching.freezing import watch_of

WAITS = "import signal; print('up', flush=True); signal.pause()"
HASTY = watch_of(floor_s=5.0, ceiling_s=8.0)
"""Containers show a sign every two seconds."""


@pytest.mark.parametrize("how", ["paused", "stopped"])
def test_a_container_that_freezes_is_ended(engine: Any, tmp_path: Path, how: str) -> None:
    """Paused as a whole, or its process stopped beside the one that started it: its output ends and its code says why,
    while another one that waits as long goes on. Signs of life stand in no log."""
    with DockerSites(grounds(contained("nano"), contained("desk")), ignored, HASTY) as sites:
        frozen, waits = (sites.launcher(name).start(python(WAITS, tmp_path / name)) for name in ("nano", "desk"))
        assert [next(job.lines()) for job in (frozen, waits)] == ["up", "up"]
        if how == "paused":
            (container,) = [each for each in engine.containers.list() if each.attrs["State"]["Pid"] == frozen.pid]
            container.pause()
        else:
            (python_of_it,) = psutil.Process(frozen.pid).children()
            os.kill(python_of_it.pid, signal.SIGSTOP)
        assert list(frozen.lines()) == []
        assert frozen.wait(30.0) == SILENT_CODE
        assert waits.poll() is None
        assert waits.tail() == frozen.tail() == ""
