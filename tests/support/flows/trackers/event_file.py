"""Reads TensorBoard event files as TensorBoard does."""

import os
import subprocess
import time
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator, ScalarEvent
from tensorboard.context import RequestContext
from tensorboard.data.server_ingester import ExistingServerDataIngester, get_server_binary
from tensorboard.util.grpc_util import ChannelCredsType

PATIENCE_S = 20.0
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
    """Step and value of each point of a name of the run in `folder`, as the server behind TensorBoard's pages has them.

    It reads while it answers, and is asked until the name has so many points, or for PATIENCE_S.
    """
    port, give_up_s = folder.parent.parent / "port", time.monotonic() + PATIENCE_S
    options = {
        "logdir": folder.parent,
        "reload": "once",
        "samples-per-plugin": "scalars=all",
        "port": 0,
        "port-file": port,
    }
    words = [get_server_binary().path, "--die-after-stdin", *(f"--{key}={value}" for key, value in options.items())]
    found: list[tuple[int, float]] = []
    with subprocess.Popen(words, stdin=subprocess.PIPE) as server:
        try:
            while time.monotonic() < give_up_s and not (port.exists() and port.read_text().endswith("\n")):
                os.sched_yield()
            local = ExistingServerDataIngester(
                f"localhost:{port.read_text().strip()}", channel_creds_type=ChannelCredsType.LOCAL
            )
            local.start()
            while time.monotonic() < give_up_s and len(found) < length:
                runs = local.data_provider.read_scalars(
                    RequestContext(), experiment_id="", plugin_name="scalars", downsample=10_000
                )
                found = [(one.step, one.value) for one in runs.get(folder.name, {}).get(name, ())]
        finally:
            server.kill()
    return found
