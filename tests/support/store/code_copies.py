"""Copies of this project's code, to be edited."""

import shutil
from pathlib import Path

from fleetune.store.stage_key import ROOT


def copied_code(folder: Path) -> Path:
    """Copy this project's code into a folder."""
    for package in ("fleetune", "stages"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def edit(path: Path) -> None:
    """Append a statement to a file."""
    path.write_text(path.read_text() + "\nEDITED = True\n")
