"""Checkpoints of lanes, which differ between two averages: no lane may go on from another one's state there."""

from collections.abc import Collection
from pathlib import Path

from fleetune.contracts import json_io
from fleetune.errors import TryAgain
from fleetune.recovery.holdings import INITIAL, Restoration
from fleetune.training.checkpoints import LANE_MARK, MARK, CheckpointMark, FileDigest, checkpoint_folder


def foreign_lanes(mark: CheckpointMark, lanes: Collection[str], some: bool = False) -> str:
    """Describe lanes that differ, as between two averages, and that are not all of the plan that goes on, or, if `some`
    suffice, none of them; '' if they are."""
    shards: dict[str, dict[str, FileDigest]] = {}
    for name in (name for name in mark.files if LANE_MARK in name):
        lane, _, segment = name.partition(LANE_MARK)
        shards.setdefault(lane, {})[segment] = mark.digests[name]
    alike = all(each == next(iter(shards.values())) for each in shards.values())
    if alike or not lanes or (set(lanes) & shards.keys() if some else set(lanes) <= shards.keys()):
        return ""
    held = ", ".join(sorted(shards))
    return f"it holds models of {held} that were not averaged yet, and this plan trains {', '.join(lanes)}"


def folder_of(found: Restoration, work: Path, lanes: Collection[str]) -> str | None:
    """Return the checkpoint that all devices go back to; None for the initial weights, and where none is read.

    TryAgain if a lane would begin with another one's state: the next attempt goes on from the newest average.
    """
    if not found.from_disk or found.version == INITIAL:
        return None
    folder = checkpoint_folder(work, found.version.rounds)
    if why := foreign_lanes(json_io.read(CheckpointMark, folder / MARK), lanes):
        raise TryAgain(f"the checkpoint of round {found.version.rounds}: {why}; run it again to go on from an average")
    return str(folder)
