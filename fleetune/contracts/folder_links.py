"""Links in a folder that somebody else may have made: they lead elsewhere within it, and nowhere else.

The one exception is the hub's cache, where every file of `models--NAME/snapshots/REVISION` is a link to one of
`models--NAME/blobs`.
"""

import os
import re
from pathlib import Path

from fleetune.errors import Refused

REPOSITORY = re.compile(r"(models|datasets|spaces)--.+")


def leads_out(path: Path, folder: Path) -> bool:
    """Whether `path`, which lies in `folder`, is a link, or lies behind one, to something outside of it."""
    whole, real = Path(os.path.realpath(folder)), Path(os.path.realpath(path))
    allowed = (whole, *(blobs for place in (whole, *whole.parents) if (blobs := _blobs(place)) is not None))
    return not any(real.is_relative_to(place) for place in allowed)


def prove_links(folder: Path, owner: str) -> None:
    """Refuse a folder with a link that leads out of it, by the link's name; `owner` opens the sentence."""
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() and leads_out(path, folder):
            raise Refused(
                f"{owner}: {path} is a link to {os.path.realpath(path)}, outside of {folder}; put the file itself there"
            )


def _blobs(place: Path) -> Path | None:
    """Where the hub's cache has the files of a snapshot."""
    return place.parents[1] / "blobs" if _is_snapshot(place) else None


def _is_snapshot(place: Path) -> bool:
    above = place.parents
    return len(above) > 1 and above[0].name == "snapshots" and bool(REPOSITORY.fullmatch(above[1].name))
