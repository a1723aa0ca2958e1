"""`make images`: builds the images of the Dockerfile on the engine that answers.

The base is BASE_IMAGE where that is set, else the Dockerfile's own where the engine has it or can pull it, else one
made from this machine's Python (base.py). Tags: fleetune-mounted, fleetune-plan, fleetune-train. What has not changed
since it was built (recipe.py) is left as it is.
"""

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from containers import answers, base, wheels
from containers.recipe import BASE, LABEL, PROJECT, TARGETS, recipe, tag
from containers.telling import told
from fleetune.errors import Refused, TryAgain

__all__ = ["Client", "build", "choose_base", "client"]

CLIENTS = ("docker", "/usr/bin/docker")
PULL_PATIENCE_S = 120
NEEDS_BUILDX = 23
"""From this version on the docker command builds only with its buildx plugin."""


class Client:
    """The docker command, talking to one engine."""

    def __init__(self, program: str, socket: str) -> None:
        self._program = program
        self._environment = {**os.environ, "DOCKER_HOST": f"unix://{socket}", "DOCKER_BUILDKIT": "1"}

    def works(self, *arguments: str, patience_s: float | None = None) -> bool:
        """Whether a command ends well; what it says is not shown."""
        return self._run(arguments, patience_s, errors=subprocess.DEVNULL) == 0

    def does(self, *arguments: str) -> None:
        """Run a command whose errors the user sees; TryAgain when it fails."""
        if code := self._run(arguments, None, errors=None):
            raise TryAgain(f"docker {arguments[0]} failed (exit code {code}): it says why above")

    def said(self, *arguments: str) -> str:
        """What a command prints, `` when it fails."""
        try:
            asked = [self._program, *arguments]
            return subprocess.run(asked, env=self._environment, capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            return ""

    def _run(self, arguments: Sequence[str], patience_s: float | None, errors: int | None) -> int:
        asked, output = [self._program, *arguments], subprocess.DEVNULL
        try:
            return subprocess.run(
                asked, env=self._environment, stdout=output, stderr=errors, timeout=patience_s, check=False
            ).returncode
        except (OSError, subprocess.TimeoutExpired):
            return 127


def client(candidates: Sequence[Client]) -> Client:
    """The first docker command that can build with BuildKit; Refused when none can."""
    for candidate in candidates:
        version = re.search(r"(\d+)\.", candidate.said("version", "--format", "{{.Client.Version}}"))
        if version and (int(version[1]) < NEEDS_BUILDX or candidate.works("buildx", "version")):
            return candidate
    raise Refused("no docker command here can build images: install docker.io, or docker's buildx plugin")


def choose_base(docker: Client, asked: str, usual: str) -> str:
    """The image to build on: `asked`, else `usual` where it is to be had, else "" for one from this machine."""
    if asked:
        if not docker.works("image", "inspect", asked):
            docker.does("pull", "--quiet", asked)
        return asked
    had = docker.works("image", "inspect", usual)
    return usual if had or docker.works("pull", usual, patience_s=PULL_PATIENCE_S) else ""


def build(docker: Client, targets: Sequence[str], asked_base: str, project: Path = PROJECT) -> Iterator[str]:
    """Builds each target that has changed, saying what was done."""
    usual = re.findall(r"^ARG BASE_IMAGE=(\S+)$", (project / "Dockerfile").read_text(), re.M)[0]
    chosen = choose_base(docker, asked_base, usual)
    if not chosen:
        chosen = base.name()
        yield f"{usual} cannot be pulled here: the base is {chosen}, made from this machine's Python"
        _import_base(docker, chosen)
    number = _inspected(docker, chosen, "{{.Id}}")
    for target in targets:
        labels = {LABEL: recipe(project, target), BASE: number}
        if all(
            _inspected(docker, tag(target), f'{{{{index .Config.Labels "{key}"}}}}') == labels[key] for key in labels
        ):
            yield f"{tag(target)}: as it should be; nothing was done"
            continue
        before = time.monotonic()
        if target != "mounted":
            wheels.gather(project, target)
        gathered = time.monotonic()
        _build(docker, target, {"BASE_IMAGE": chosen}, labels, project)
        size = int(_inspected(docker, tag(target), "{{.Size}}") or 0)
        spent = f"packages {gathered - before:.0f} s, image {time.monotonic() - gathered:.0f} s"
        yield f"{tag(target)}: {size / 1e6:.0f} MB ({spent})"


def _build(docker: Client, target: str, settings: Mapping[str, str], labels: Mapping[str, str], project: Path) -> None:
    """One image, in place of the one that was called so."""
    older = _inspected(docker, tag(target), "{{.Id}}")
    given = [("--build-arg", f"{key}={value}") for key, value in settings.items()]
    given += [("--label", f"{key}={value}") for key, value in labels.items()]
    words = [word for pair in given for word in pair]
    docker.does("build", "--quiet", "--network=none", *words, "--target", target, "--tag", tag(target), str(project))
    if older and older != _inspected(docker, tag(target), "{{.Id}}"):
        docker.works("image", "rm", older)  # unless a container or another name still needs it


def _import_base(docker: Client, name: str) -> None:
    """As an image of that name, unless it is there: one imported again would make everything be built again."""
    with tempfile.NamedTemporaryFile(suffix=".tar") as archive:
        base.write(archive)
        archive.flush()
        digest = hashlib.sha256(Path(archive.name).read_bytes()).hexdigest()
        if _inspected(docker, name, f'{{{{index .Config.Labels "{LABEL}"}}}}') != digest:
            changes = [
                word for setting in (*base.SETTINGS, f"LABEL {LABEL}={digest}") for word in ("--change", setting)
            ]
            docker.does("import", *changes, archive.name, name)


def _inspected(docker: Client, image: str, form: str) -> str:
    """A fact of an image, `` where there is no such image."""
    return docker.said("image", "inspect", "--format", form, image).strip()


def main(targets: list[str]) -> int:
    """Builds the targets named, or all, in words; the exit code."""
    return told(lambda: _built(targets))


def _built(targets: list[str]) -> Iterator[str]:
    if strange := set(targets) - set(TARGETS):
        raise Refused(f"there is no image {', '.join(sorted(strange))}; there are {', '.join(TARGETS)}")
    socket = _socket()
    docker = client([Client(program, socket) for program in CLIENTS])
    yield from build(docker, targets or TARGETS, os.environ.get("BASE_IMAGE", ""))


def _socket() -> str:
    try:
        return answers.find().socket
    except answers.NoAnswer as error:
        raise Refused(f"no engine answers {error}: run make engine first, or start yours") from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
