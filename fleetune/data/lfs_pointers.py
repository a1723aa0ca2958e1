"""Pointers of Git LFS: what a clone has instead of a file that was not fetched."""

from pathlib import Path

from fleetune.data.public_words import Told

BEGINNING = b"version https://git-lfs.github.com/spec/"


def check_fetched(location: str, path: Path) -> None:
    """Refuse a file that is only a pointer; the message starts with `location`."""
    with path.open("rb") as file:
        check_content(location, file.read(len(BEGINNING)))


def check_content(location: str, content: bytes) -> None:
    """Refuse the content, or its beginning, of a file that is only a pointer."""
    if content.startswith(BEGINNING):
        raise Told(
            "{location}: it is only a pointer of Git LFS, and no data; run git lfs pull where it was cloned",
            location=location,
        )
