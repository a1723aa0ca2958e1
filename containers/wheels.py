"""The packages of an image, gathered as wheels outside the engine: in the versions of constraints.txt, from wherever
pip finds packages on this machine. Images are then built without a network."""

import hashlib
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from fleetune.errors import Refused, TryAgain

__all__ = ["digest", "gather", "requirements"]


def requirements(project: Path, target: str) -> tuple[str, ...]:
    """What pyproject.toml asks for, of the packages that it lists for the image `target`."""
    document = tomllib.loads((project / "pyproject.toml").read_text())
    asked = {re.split(r"[^\w.-]", asked, maxsplit=1)[0]: asked for asked in document["project"]["dependencies"]}
    images: dict[str, list[str]] = document["tool"]["fleetune"]["images"]
    if target not in images:
        raise Refused(f"there is no image {target!r}; there are {', '.join(images)}")
    if strange := [name for name in images[target] if name not in asked]:
        raise Refused(f"image {target} lists {', '.join(strange)}, which the project does not depend on")
    return tuple(asked[name] for name in images[target])


def digest(project: Path, target: str) -> str:
    """Of all that decides which wheels an image gets; they are for this very Python."""
    wanted = "\n".join(requirements(project, target)) + "\n"
    constraints = (project / "constraints.txt").read_text()
    return hashlib.sha256((wanted + constraints + sys.version).encode()).hexdigest()


def gather(project: Path, target: str) -> Path:
    """The folder `build/wheels/TARGET`: wheels, requirements.txt, constraints.txt; made anew only when these change."""
    folder = project / "build" / "wheels" / target
    current = digest(project, target)
    done = project / "build" / "wheels" / f"{target}.made"
    if done.is_file() and done.read_text() == current:
        return folder
    done.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "requirements.txt").write_text("\n".join(requirements(project, target)) + "\n")
    shutil.copy(project / "constraints.txt", folder / "constraints.txt")
    lists = ["--requirement", str(folder / "requirements.txt"), "--constraint", str(folder / "constraints.txt")]
    pip = [sys.executable, "-P", "-m", "pip", "--quiet", "--disable-pip-version-check"]
    if subprocess.run([*pip, "wheel", "--wheel-dir", str(folder), *lists], check=False).returncode:
        raise TryAgain(f"the packages of image {target} could not be gathered: pip says why above")
    done.write_text(current)
    return folder
