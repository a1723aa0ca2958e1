"""What an image was built from, as a digest that it carries: whether it is still what the project would build.

Only `make images` builds, so an image can be older than the code beside it; a stage in it would then do what the code
did before. Whoever uses an image asks here first (`fleetune doctor`, the tests of containers).
"""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from containers import wheels

__all__ = ["BASE", "LABEL", "PROJECT", "TARGETS", "lacking", "recipe", "tag"]

PROJECT = Path(__file__).parents[1]
TARGETS = ("mounted", "plan", "train")
LABEL, BASE = "fleetune.recipe", "fleetune.base"
"""Labels of every image: the digest of what it was built from, and the number of the image it was built on."""
CARRIED = ("containers", "fleetune", "stages", "configs/problems")
FORGOTTEN = "__pycache__"


def tag(target: str) -> str:
    """What the image is called."""
    return f"fleetune-{target}"


def recipe(project: Path, target: str) -> str:
    """The digest of all that the image is built from, its base aside."""
    digest = hashlib.sha256((project / "Dockerfile").read_bytes())
    if target != "mounted":  # which carries neither code nor packages
        digest.update(wheels.digest(project, target).encode())
        for path in _carried(project):
            digest.update(f"\0{path.relative_to(project)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def lacking(images: Mapping[str, Mapping[str, str]], target: str, project: Path = PROJECT) -> str:
    """Why an engine with these images (name -> labels) cannot serve with this one; empty where it can."""
    labels = images.get(f"{tag(target)}:latest")
    if labels is None:
        return f"{tag(target)} is not built"
    if labels.get(LABEL) != recipe(project, target):
        return f"{tag(target)} is older than the code"
    return ""


def _carried(project: Path) -> Iterator[Path]:
    for folder in CARRIED:
        files = (path for path in (project / folder).rglob("*") if path.is_file())
        yield from sorted(path for path in files if FORGOTTEN not in path.parts)
