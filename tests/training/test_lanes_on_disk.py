"""Checkpoints between two averages: no lane goes on from another one's state in a recovery."""

from dataclasses import replace
from pathlib import Path

import pytest

from fleetune.contracts import json_io
from fleetune.errors import TryAgain
from fleetune.recovery.holdings import Attempt, Restoration, Version
from fleetune.recovery.transfers import DISK, Transfer
from fleetune.training.checkpoints import MARK, CheckpointMark, FileDigest, checkpoint_folder, folder_of


def stored(work: Path, **digests: str) -> Restoration:
    """A recovery that reads the checkpoint of round 4, with these digests by lane."""
    found = {f"{lane}@segment-0.safetensors": FileDigest(bytes=1, sha256=digest) for lane, digest in digests.items()}
    folder = checkpoint_folder(work, 4)
    folder.mkdir(parents=True)
    json_io.write(CheckpointMark(round=4, files=tuple(found), digests=found), folder / MARK)
    read = Transfer(source=DISK, target="x", lane="a", names=("w",), bytes=1)
    return Restoration(version=Version(4, Attempt(1, 1)), transfers=(read,))


def test_a_lane_that_the_checkpoint_lacks_goes_on_from_an_average(tmp_path: Path) -> None:
    """Bug: client c, which had come back after the checkpoint, was given a's weights and moments, silently, also where
    a's data are its own. The next attempt goes on from the newest average, or says that there is none."""
    found = stored(tmp_path, a="1" * 64, b="2" * 64)
    with pytest.raises(
        TryAgain, match="models of a, b that were not averaged yet, and this plan trains a, b, c; run it"
    ):
        folder_of(found, tmp_path, "abc")
    assert folder_of(found, tmp_path, "ab") == folder_of(found, tmp_path, ()) == str(checkpoint_folder(tmp_path, 4))


def test_after_an_average_any_lane_may_begin(tmp_path: Path) -> None:
    """All lanes are alike there; and nothing is read where devices have what they need, or begin anew."""
    found = stored(tmp_path, a="1" * 64, b="1" * 64)
    assert folder_of(found, tmp_path, "abc") == str(checkpoint_folder(tmp_path, 4))
    assert folder_of(replace(found, transfers=()), tmp_path, "abc") is None
