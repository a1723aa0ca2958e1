"""What reaches the disk, and when something gets its name."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def recorded(patch: pytest.MonkeyPatch) -> list[str]:
    """From now on: the path of each file and folder that is flushed, and `=> path` of each name that is given."""
    done: list[str] = []
    fsync = os.fsync

    def recorded_fsync(handle: int) -> None:
        done.append(os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    def naming(name: str) -> Callable[..., None]:
        original = getattr(os, name)

        def named(source: Any, target: Any, **folders: int) -> None:
            original(source, target, **folders)
            folder = os.readlink(f"/proc/self/fd/{folders['dst_dir_fd']}") if folders else ""
            done.append(f"=> {Path(folder, target)}")

        return named

    patch.setattr(os, "fsync", recorded_fsync)
    for name in ("replace", "rename"):
        patch.setattr(os, name, naming(name))
    return done
