"""Reads TensorBoard event files as TensorBoard does."""

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator, ScalarEvent

ALL = {"scalars": 0}
"""Keeps every point; the viewer keeps a sample."""


def points(folder: Path) -> dict[str, list[ScalarEvent]]:
    """Name -> wall time, step and value of each point in a folder of event files."""
    found = EventAccumulator(str(folder), size_guidance=ALL).Reload()
    return {name: found.Scalars(name) for name in found.Tags()["scalars"]}


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Name -> step and value of each point in a folder of event files."""
    return {name: [(one.step, one.value) for one in found] for name, found in points(folder).items()}
