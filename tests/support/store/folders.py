"""Folders to put into a store."""

from collections.abc import Callable
from pathlib import Path

Make = Callable[..., Path]


def maker(parent: Path) -> Make:
    """Return a function that creates a folder below `parent` with the files that it is told: name -> text."""
    made: list[Path] = []

    def make(**files: str) -> Path:
        folder = parent / f"made-{len(made)}"
        made.append(folder)
        folder.mkdir()
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        return folder

    return make
