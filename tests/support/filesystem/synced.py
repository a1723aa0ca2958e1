"""What reaches the disk, and when something gets its name."""

import os
from pathlib import Path
from typing import Any

import pytest


def recorded(patch: pytest.MonkeyPatch) -> list[str]:
    """From now on: the path of each file and folder that is flushed, and `=> path` of each name that is given."""
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def recorded_fsync(handle: int) -> None:
        done.append(os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    def recorded_replace(source: Any, target: Any, **more: Any) -> None:
        replace(source, target, **more)
        done.append(f"=> {Path(target)}")

    patch.setattr(os, "fsync", recorded_fsync)
    patch.setattr(os, "replace", recorded_replace)
    return done
