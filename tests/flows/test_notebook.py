"""The pipeline from a notebook: without Prefect, beside an event loop, in a few lines."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

import fleetune
from fleetune.errors import Refused

CELL = """
import fleetune
planned = fleetune.plan("asteroid-b", root={root!r}, strategy="pp", model="vit-tiny", data="digits")
print(planned)
assert planned.plan.plan.strategy == "pp" and planned.forecast.round_s > 0
assert "<svg" in planned._repr_html_()
again = fleetune.plan(planned.id, root={root!r})
assert again.record.stage("plan").how == "reused"
import sys
assert "prefect" not in sys.modules
"""


def test_a_script_from_stdin_plans_and_plans_again_by_what_is_stored(tmp_path: Path) -> None:
    """There is no file that a process could import again, and no Prefect; the second plan is that of the store."""
    done = subprocess.run(
        [sys.executable, "-"], input=CELL.format(root=str(tmp_path)), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "pp, a round takes" in done.stdout
    assert "plan      reused - same key as" in done.stdout and "reused - reused" not in done.stdout


def test_a_cell_runs_beside_an_event_loop_and_says_what_is_wrong(tmp_path: Path) -> None:
    """Notebooks have a loop in the thread of their cells. Unknown changes and what a run lacks are sentences."""

    async def cell() -> "object":
        return fleetune.plan("asteroid-b", root=tmp_path, strategy="pp", model="vit-tiny", data="digits")

    planned = asyncio.run(cell())
    with pytest.raises(Refused, match=r"has no metrics: it ended after plan; train it"):
        _ = planned.losses  # type: ignore[attr-defined]
    with pytest.raises(Refused, match="epochs: no such change; allowed are strategy, fleet, model, data, rounds"):
        fleetune.train("asteroid-b", root=tmp_path, epochs=3)
    with pytest.raises(Refused, match="base: 'nosuch' is neither a run file"):
        fleetune.train("nosuch", root=tmp_path)
    with pytest.raises(AttributeError, match="has no attribute 'traim'"):
        fleetune.traim  # noqa: B018
