"""What images are made of, as far as that can be told without an engine."""

import ast
import re
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from containers import images, wheels
from fleetune.errors import Refused

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PLAN_ROOMS = ("clock", "contracts", "planning", "solving", "store")
DISTRIBUTIONS = {"jinja2": "jinja2", "zmq": "pyzmq"}


def test_targets() -> None:
    """Each image that is built is a target of the Dockerfile."""
    assert set(images.TARGETS) <= set(re.findall(r" AS (\S+)$", DOCKERFILE, re.M))


def test_no_address_and_no_network() -> None:
    """No step names an address, an index or a secret, and pip is told to look nowhere but into the wheels."""
    assert not re.search(r"https?:|index-url|trusted-host|\bADD\b|secret=", DOCKERFILE)
    steps = [line for line in DOCKERFILE.splitlines() if '"pip"' in line]
    assert steps and all('"--no-index"' in step and '"--no-cache-dir"' in step for step in steps)


def test_nobody_is_root() -> None:
    """Whatever image is run, its user is a number other than root's, set once, in the stage all images come from."""
    assert re.findall(r"^USER (.*)$", DOCKERFILE, re.M) == ["10001:10001"]
    stages = dict(re.findall(r"^FROM (\S+) AS (mounted|plan|train)$", DOCKERFILE, re.M))
    assert stages == {"${BASE_IMAGE}": "mounted", "mounted": "train"}
    assert re.search(r"^FROM mounted AS plan$", DOCKERFILE, re.M)


def test_no_step_needs_a_shell() -> None:
    """Every step is a list of words, so that a base without a shell serves."""
    steps = re.findall(r"^RUN (?:--mount\S+ \\\n +)?(.*)$", DOCKERFILE, re.M)
    assert len(steps) == DOCKERFILE.count("\nRUN ")
    assert all(isinstance(ast.literal_eval(step), list) for step in steps)


@pytest.mark.parametrize("target", ["plan", "train"])
def test_packages(target: str) -> None:
    """Each image asks for packages as the project does; only `train` has torch, and none has Prefect."""
    asked = {Requirement(text).name for text in wheels.requirements(ROOT, target)}
    assert ("torch" in asked) is (target == "train")
    assert "prefect" not in asked


def test_packages_are_pinned() -> None:
    """Every package of an image has one version in the constraints."""
    pinned = {canonicalize_name(line.split("==")[0]) for line in (ROOT / "constraints.txt").read_text().split()}
    asked = {canonicalize_name(Requirement(text).name) for text in wheels.requirements(ROOT, "train")}
    assert asked <= pinned


def test_plan_has_what_planning_imports() -> None:
    """Every library that the rooms of planning import is in the image `plan`."""
    files = [path for room in PLAN_ROOMS for path in (ROOT / "fleetune" / room).rglob("*.py")]
    imported = {name.split(".")[0] for path in files for name in _imports(path)}
    others = imported - set(sys.stdlib_module_names) - {"fleetune", "pydantic_core"}
    asked = {Requirement(text).name for text in wheels.requirements(ROOT, "plan")}
    assert {DISTRIBUTIONS.get(name, name) for name in others} <= asked


def _imports(path: Path) -> list[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    plain = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return plain + [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]


def test_unknown_packages(tmp_path: Path) -> None:
    """An unknown image, or one with a package that the project does not depend on, is refused by name."""
    (tmp_path / "pyproject.toml").write_text(
        '[project]\ndependencies = ["one>=1"]\n[tool.fleetune.images]\nplan = ["one", "two"]\n'
    )
    with pytest.raises(Refused, match="lists two"):
        wheels.requirements(tmp_path, "plan")
    with pytest.raises(Refused, match="no image 'other'; there are plan"):
        wheels.requirements(tmp_path, "other")


class Fake(images.Client):
    """A docker command that does as told."""

    def __init__(self, version: str = "", *works: str) -> None:
        self.version, self.working = version, works

    def works(self, *arguments: str, patience_s: float | None = None) -> bool:
        """As told, by the first word."""
        return arguments[0] in self.working

    def said(self, *arguments: str) -> str:
        """Its version."""
        return self.version


def test_client() -> None:
    """The first docker command that can build is taken: an older one, or one with its plugin."""
    none, newer, older, plugged = Fake(), Fake("28.2.2"), Fake("20.10.24"), Fake("28.2.2", "buildx")
    assert images.client([none, newer, older]) is older
    assert images.client([plugged, older]) is plugged
    with pytest.raises(Refused, match="buildx"):
        images.client([none, newer])


def test_choice_of_the_base() -> None:
    """What was asked for wins; then an image that is there or can be pulled; else one of this machine."""
    assert images.choose_base(Fake(), "mine", "usual") == "mine"
    assert images.choose_base(Fake("", "image"), "", "usual") == "usual"
    assert images.choose_base(Fake("", "pull"), "", "usual") == "usual"
    assert images.choose_base(Fake(), "", "usual") == ""
