"""Which commit of this project runs, where it runs from a git checkout."""

import subprocess
from pathlib import Path

from fleetune.contracts.record import record
from fleetune.store.code import ROOT

CODE = ("fleetune", "flows", "stages", "containers")
GIT_S = 10.0


@record
class Commit:
    """The commit that is checked out; no id where the project is installed, or git is not."""

    id: str = ""
    dirty: bool = False
    """Its code was edited since."""


def checked_out(root: Path = ROOT) -> Commit:
    """The commit of the checkout at `root`; a folder that lies in the checkout of something else has none."""
    if not (root / ".git").exists():
        return Commit()
    commit = _git(root, "rev-parse", "HEAD")
    if not commit:
        return Commit()
    edited = _git(root, "status", "--porcelain", "--", *(name for name in CODE if (root / name).is_dir()))
    return Commit(id=commit, dirty=bool(edited))


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "--no-optional-locks", "-C", str(root), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
