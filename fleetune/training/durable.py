"""Files that are still there after the machine has lost power: their bytes and their names are flushed to the disk."""

import os
from pathlib import Path


def flush(path: Path) -> None:
    """Wait until the disk has a file's bytes, or the names in a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_durably(text: str, path: Path) -> None:
    """Write a text file, whole or not at all; it is on disk under its name when the call returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(text, encoding="utf-8")
        flush(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    flush(path.parent)
