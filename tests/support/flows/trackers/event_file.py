"""Reads TensorBoard event files as TensorBoard does."""

import json
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import ProxyHandler, build_opener

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator, ScalarEvent

PATIENCE_S = 20.0
AT = re.compile(r"TensorBoard .* at (http://\S+/) ")
ALL = {"scalars": 0}
"""Keeps every point; the viewer keeps a sample."""


def points(folder: Path) -> dict[str, list[ScalarEvent]]:
    """Name -> wall time, step and value of each point in a folder of event files."""
    found = EventAccumulator(str(folder), size_guidance=ALL).Reload()
    return {name: found.Scalars(name) for name in found.Tags()["scalars"]}


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Name -> step and value of each point in a folder of event files."""
    return {name: [(one.step, one.value) for one in found] for name, found in points(folder).items()}


def served(folder: Path, name: str, length: int) -> list[tuple[int, float]]:
    """Step and value of each point of a name of the run in `folder`, as TensorBoard's own server gives it to its page.

    It reads while it answers, and is asked until the name has so many points, or for PATIENCE_S.
    """
    asked = urlencode({"run": folder.name, "tag": name})
    words = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder.parent), "--host", "127.0.0.1"]
    found: list[tuple[int, float]] = []
    with subprocess.Popen([*words, "--port", "0"], stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            address = next(filter(None, map(AT.search, server.stderr)))[1]
            give_up_s = time.monotonic() + PATIENCE_S
            while time.monotonic() < give_up_s and len(found) < length:
                place = f"{address}data/plugin/scalars/scalars?{asked}"
                with suppress(HTTPError), build_opener(ProxyHandler({})).open(place) as answer:  # 404 before it has any
                    found = [(step, value) for _, step, value in json.load(answer)]
        finally:
            server.kill()
    return found
