"""The inputs of an image: its packages, gathered as wheels, and a digest of everything it is built from.

Only `make images` builds, so an image can be older than the code beside it, and a stage in it would run the older code.
`fleetune doctor` and the tests of containers therefore compare digests before they use an image. Wheels are gathered
outside the engine, in the versions of constraints.txt, so that images are built without a network.
"""

import hashlib
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from fleetune.errors import Refused, TryAgain

__all__ = [
    "BASE_LABEL", "PROJECT", "RECIPE_LABEL", "TARGETS", "gather_wheels", "recipe_digest", "requirements", "tag",
    "unusable_reason", "wheels_digest",
]  # fmt: skip

PROJECT = Path(__file__).parents[1]
TARGETS = ("mounted", "plan", "train")
RECIPE_LABEL, BASE_LABEL = "fleetune.recipe", "fleetune.base"
"""Labels of every image: the digest of what it was built from, and the id of its base image."""
COPIED_FOLDERS = ("containers", "fleetune", "stages", "configs/problems")
IGNORED_FOLDER = "__pycache__"


def tag(target: str) -> str:
    """Image name of a target of the Dockerfile."""
    return f"fleetune-{target}"


def recipe_digest(project: Path, target: str) -> str:
    """Hex sha256 of everything the image is built from, except its base image."""
    digest = hashlib.sha256((project / "Dockerfile").read_bytes())
    if target != "mounted":  # `mounted` holds neither code nor packages
        digest.update(wheels_digest(project, target).encode())
        for path in _copied_files(project):
            digest.update(f"\0{path.relative_to(project)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def unusable_reason(images: Mapping[str, Mapping[str, str]], target: str, project: Path = PROJECT) -> str:
    """Reason why none of an engine's images (name -> labels) is a current image of `target`; empty if one is."""
    labels = images.get(f"{tag(target)}:latest")
    if labels is None:
        return f"{tag(target)} is not built"
    if labels.get(RECIPE_LABEL) != recipe_digest(project, target):
        return f"{tag(target)} is older than the code"
    return ""


def requirements(project: Path, target: str) -> tuple[str, ...]:
    """Requirements from pyproject.toml for the packages that it lists under the image `target`."""
    document = tomllib.loads((project / "pyproject.toml").read_text())
    by_name = {re.split(r"[^\w.-]", text, maxsplit=1)[0]: text for text in document["project"]["dependencies"]}
    images: dict[str, list[str]] = document["tool"]["fleetune"]["images"]
    if target not in images:
        raise Refused(f"there is no image {target!r}; there are {', '.join(images)}")
    if unknown := [name for name in images[target] if name not in by_name]:
        raise Refused(f"image {target} lists {', '.join(unknown)}, which the project does not depend on")
    return tuple(by_name[name] for name in images[target])


def wheels_digest(project: Path, target: str) -> str:
    """Hex sha256 of everything that decides which wheels an image gets, the version of Python included."""
    wanted = "\n".join(requirements(project, target)) + "\n"
    constraints = (project / "constraints.txt").read_text()
    return hashlib.sha256((wanted + constraints + sys.version).encode()).hexdigest()


def gather_wheels(project: Path, target: str) -> Path:
    """Fill `build/wheels/TARGET` with wheels, requirements.txt and constraints.txt if these have changed.

    Returns the folder; TryAgain when pip fails.
    """
    folder = project / "build" / "wheels" / target
    current = wheels_digest(project, target)
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


def _copied_files(project: Path) -> Iterator[Path]:
    for folder in COPIED_FOLDERS:
        files = (path for path in (project / folder).rglob("*") if path.is_file())
        yield from sorted(path for path in files if IGNORED_FOLDER not in path.parts)
