"""`make images` builds the images of the Dockerfile on the engine that answers.

The base image is BASE_IMAGE where that is set, else the Dockerfile's own where the engine has it or can pull it, else
one made from this machine's Python (base_image.py). Tags: fleetune-mounted, fleetune-plan, fleetune-train. Wheels are
gathered outside the engine, in the versions of constraints.txt, so that images are built without a network. A library
compiled from this machine's quantiser.c is copied as it is; an image of another processor or libc does without.

Every image carries a digest of everything it is built from, and is left as it is while that has not changed. An image
can be older than the code beside it, and a stage in it would run the older code. `fleetune doctor`, launchers and the
tests of containers therefore compare digests before they use an image.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from containers import base_image, engine_api
from containers.machine import print_steps
from fleetune.errors import Refused, TryAgain
from fleetune.formatting import megabytes

__all__ = [
    "BASE_LABEL",
    "DockerCommand",
    "PROJECT",
    "RECIPE_LABEL",
    "TARGETS",
    "build",
    "choose_base",
    "choose_docker_command",
    "gather_wheels",
    "recipe_digest",
    "requirements",
    "tag",
    "unusable_reason",
    "wheels_digest",
]

PROJECT = Path(__file__).parents[1]
TARGETS = ("mounted", "plan", "train")
WHEELS = {"mounted": (), "plan": ("plan",), "train": ("plan", "train")}
"""Target -> the wheels that its build reads: the planners are compiled with the packages of `plan` for both images."""
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


PROGRAMS = ("docker", "/usr/bin/docker")
PULL_TIMEOUT_S = 120
NEEDS_BUILDX_FROM = 23
"""From this major version on the docker command needs its buildx plugin to build."""


class DockerCommand:
    """The docker command line program, connected to one engine."""

    def __init__(self, program: str, socket: str) -> None:
        self._program = program
        self._environment = {**os.environ, "DOCKER_HOST": f"unix://{socket}", "DOCKER_BUILDKIT": "1"}

    def succeeds(self, *arguments: str, timeout_s: float | None = None) -> bool:
        """Run a command without showing its output; returns True if it exits with 0 in time."""
        return self._run(arguments, timeout_s, errors=subprocess.DEVNULL) == 0

    def run(self, *arguments: str) -> None:
        """Run a command whose errors the user sees; TryAgain when it fails."""
        if code := self._run(arguments, None, errors=None):
            raise TryAgain(f"docker {arguments[0]} failed (exit code {code}): it says why above")

    def output(self, *arguments: str) -> str:
        """Stdout of a command; empty when it fails."""
        try:
            command = [self._program, *arguments]
            return subprocess.run(command, env=self._environment, capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            return ""

    def inspect(self, image: str, template: str) -> str:
        """A property of an image by Go template; empty where there is no such image."""
        return self.output("image", "inspect", "--format", template, image).strip()

    def label(self, image: str, key: str) -> str:
        """The value of a label of an image; empty where there is none."""
        return self.inspect(image, f'{{{{index .Config.Labels "{key}"}}}}')

    def _run(self, arguments: Sequence[str], timeout_s: float | None, errors: int | None) -> int:
        command, output = [self._program, *arguments], subprocess.DEVNULL
        try:
            return subprocess.run(
                command, env=self._environment, stdout=output, stderr=errors, timeout=timeout_s, check=False
            ).returncode
        except (OSError, subprocess.TimeoutExpired):
            return 127


def choose_docker_command(candidates: Sequence[DockerCommand]) -> DockerCommand:
    """The first docker command that can build with BuildKit; Refused when none can."""
    for candidate in candidates:
        version = re.search(r"(\d+)\.", candidate.output("version", "--format", "{{.Client.Version}}"))
        if version and (int(version[1]) < NEEDS_BUILDX_FROM or candidate.succeeds("buildx", "version")):
            return candidate
    raise Refused("no docker command here can build images: install docker.io, or docker's buildx plugin")


def choose_base(docker: DockerCommand, requested: str, default: str) -> str:
    """The base image: `requested`, else `default` where the engine has it or can pull it, else ""."""
    if requested:
        if not docker.succeeds("image", "inspect", requested):
            docker.run("pull", "--quiet", requested)
        return requested
    present = docker.succeeds("image", "inspect", default)
    return default if present or docker.succeeds("pull", default, timeout_s=PULL_TIMEOUT_S) else ""


def build(docker: DockerCommand, targets: Sequence[str], requested_base: str, project: Path = PROJECT) -> Iterator[str]:
    """Build each target whose inputs have changed; yields what was done."""
    default = re.findall(r"^ARG BASE_IMAGE=(\S+)$", (project / "Dockerfile").read_text(), re.M)[0]
    chosen = choose_base(docker, requested_base, default)
    if not chosen:
        chosen = base_image.name()
        yield f"{default} cannot be pulled here: the base is {chosen}, made from this machine's Python"
        _import_base(docker, chosen)
    base_id = docker.inspect(chosen, "{{.Id}}")
    for target in targets:
        labels = {RECIPE_LABEL: recipe_digest(project, target), BASE_LABEL: base_id}
        if all(docker.label(tag(target), key) == value for key, value in labels.items()):
            yield f"{tag(target)}: up to date; nothing was done"
            continue
        start_s = time.monotonic()
        for needed in WHEELS[target]:
            gather_wheels(project, needed)
        gathered_s = time.monotonic()
        _build(docker, target, {"BASE_IMAGE": chosen}, labels, project)
        size = int(docker.inspect(tag(target), "{{.Size}}") or 0)
        spent = f"packages {gathered_s - start_s:.0f} s, image {time.monotonic() - gathered_s:.0f} s"
        yield f"{tag(target)}: {megabytes(size)} ({spent})"


def _build(
    docker: DockerCommand, target: str, settings: Mapping[str, str], labels: Mapping[str, str], project: Path
) -> None:
    """Build one image, and remove the one that had its name before."""
    older = docker.inspect(tag(target), "{{.Id}}")
    options = [("--build-arg", f"{key}={value}") for key, value in settings.items()]
    options += [("--label", f"{key}={value}") for key, value in labels.items()]
    words = [word for pair in options for word in pair]
    docker.run("build", "--quiet", "--network=none", *words, "--target", target, "--tag", tag(target), str(project))
    if older and older != docker.inspect(tag(target), "{{.Id}}"):
        docker.succeeds("image", "rm", older)  # fails, harmlessly, where a container or another name still needs it


def _import_base(docker: DockerCommand, name: str) -> None:
    """Import the base image unless the engine has it: importing it again would rebuild everything on it."""
    with tempfile.NamedTemporaryFile(suffix=".tar") as archive:
        base_image.write(archive)
        archive.flush()
        digest = hashlib.sha256(Path(archive.name).read_bytes()).hexdigest()
        if docker.label(name, RECIPE_LABEL) != digest:
            settings = (*base_image.SETTINGS, f"LABEL {RECIPE_LABEL}={digest}")
            changes = [word for setting in settings for word in ("--change", setting)]
            docker.run("import", *changes, archive.name, name)


def main(targets: list[str]) -> int:
    """Build the named targets, or all; returns the exit code."""
    return print_steps(lambda: _build_targets(targets))


def _build_targets(targets: list[str]) -> Iterator[str]:
    if unknown := set(targets) - set(TARGETS):
        raise Refused(f"there is no image {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    socket = _engine_socket()
    docker = choose_docker_command([DockerCommand(program, socket) for program in PROGRAMS])
    yield from build(docker, targets or TARGETS, os.environ.get("BASE_IMAGE", ""))


def _engine_socket() -> str:
    try:
        return engine_api.find_engine().socket
    except engine_api.EngineUnavailable as error:
        raise Refused(f"no engine answers {error}: run make engine first, or start yours") from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
