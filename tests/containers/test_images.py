"""What images are made of, as far as that can be told without an engine."""

import ast
import re
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from containers import images, recipe, wheels
from fleetune.errors import Refused

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PLAN_ROOMS = ("clock", "contracts", "planning", "solving", "store")
DISTRIBUTIONS = {"jinja2": "jinja2", "zmq": "pyzmq"}


def test_targets() -> None:
    """Each image that is built is a target of the Dockerfile."""
    assert set(recipe.TARGETS) <= set(re.findall(r" AS (\S+)$", DOCKERFILE, re.M))


def test_no_address_and_no_network() -> None:
    """No step names an address, an index or a secret, and pip is told to look nowhere but into the wheels."""
    assert not re.search(r"https?:|index-url|trusted-host|\bADD\b|secret=", DOCKERFILE)
    steps = [line for line in DOCKERFILE.splitlines() if '"pip"' in line]
    assert steps and all('"--no-index"' in step and '"--no-cache-dir"' in step for step in steps)


def test_nobody_is_root() -> None:
    """Whatever image is run, its user is a number other than root's, set once, in the stage all images come from."""
    assert re.findall(r"^USER (.*)$", DOCKERFILE, re.M) == ["10001:10001"]
    assert dict(re.findall(r"^FROM thin AS (\S+)$()", DOCKERFILE, re.M)).keys() == set(recipe.TARGETS)


def test_only_the_mounted_image_says_so() -> None:
    """What makes a launcher mount code and packages is said by no image that has its own."""
    stage = re.search(r"^FROM thin AS mounted\n(.*?)\n\n", DOCKERFILE, re.M | re.S)
    assert stage is not None and stage[1] == "LABEL fleetune.mounted=1"
    assert DOCKERFILE.count("LABEL") == 1


def test_no_step_needs_a_shell() -> None:
    """Every step is a list of words, so that a base without a shell serves."""
    steps = re.findall(r"^RUN (?:--mount\S+ \\\n +)*(.*)$", DOCKERFILE, re.M)
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


PYPROJECT = """
[project]
dependencies = ["one>=1"]
[tool.fleetune.images]
plan = ["one"]
train = ["one"]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of a few files, for which wheels have been gathered."""
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    (tmp_path / "constraints.txt").write_text("one==1.0\n")
    (tmp_path / "Dockerfile").write_text("ARG BASE_IMAGE=usual\nFROM ${BASE_IMAGE} AS mounted\n")
    for folder in recipe.CARRIED:
        (tmp_path / folder / "__pycache__").mkdir(parents=True)
    (tmp_path / "fleetune" / "code.py").write_text("")
    wheels_folder = tmp_path / "build" / "wheels"
    wheels_folder.mkdir(parents=True)
    for target in ("plan", "train"):
        (wheels_folder / f"{target}.made").write_text(wheels.digest(tmp_path, target))
    return tmp_path


@pytest.mark.parametrize(
    ("file", "changed"),
    [
        ("Dockerfile", {"mounted", "plan", "train"}),
        ("constraints.txt", {"plan", "train"}),
        ("fleetune/code.py", {"plan", "train"}),
        ("stages/page.html", {"plan", "train"}),
        ("fleetune/__pycache__/code.pyc", set()),
        ("README.md", set()),
    ],
)
def test_recipe(project: Path, file: str, changed: set[str]) -> None:
    """An image is another one when something that it is made of has changed, and only then."""
    before = {target: recipe.recipe(project, target) for target in recipe.TARGETS}
    with (project / file).open("a") as text:
        text.write("# more\n")
    assert {target for target in before if recipe.recipe(project, target) != before[target]} == changed


def test_lacking(project: Path) -> None:
    """An engine can serve with an image built from what is here now; where it has none, or an older one, it is said."""
    labels = {recipe.LABEL: recipe.recipe(project, "plan")}
    found = {"fleetune-plan:latest": labels, "fleetune-train:latest": {}}
    assert recipe.lacking(found, "plan", project) == ""
    assert recipe.lacking(found, "train", project) == "fleetune-train is older than the code"
    assert recipe.lacking(found, "mounted", project) == "fleetune-mounted is not built"


class Fake(images.Client):
    """A docker command that does as told."""

    def __init__(self, version: str = "", *works: str) -> None:
        self.version, self.working = version, works
        self.done: list[tuple[str, ...]] = []

    def does(self, *arguments: str) -> None:
        """Notes it."""
        self.done.append(arguments)

    def works(self, *arguments: str, patience_s: float | None = None) -> bool:
        """As told, by the first word."""
        return arguments[0] in self.working

    def said(self, *arguments: str) -> str:
        """Its version."""
        return self.version


class Engine(images.Client):
    """A docker command whose engine builds in memory, and notes what it was told to do."""

    def __init__(self) -> None:
        self.labels: dict[str, dict[str, str]] = {"usual": {}}
        self.done: list[str] = []

    def works(self, *arguments: str, patience_s: float | None = None) -> bool:
        """Whether an image is there; removing always goes well."""
        if arguments[1] == "rm":
            self.done.append(f"rm {arguments[2]}")
            return True
        return arguments[:2] == ("image", "inspect") and arguments[2] in self.labels

    def does(self, *arguments: str) -> None:
        """Builds an image."""
        tag = arguments[arguments.index("--tag") + 1]
        labels = [arguments[i + 1] for i, word in enumerate(arguments) if word == "--label"]
        self.labels[tag] = dict(label.split("=", 1) for label in labels)
        self.done.append(f"{arguments[0]} {tag}")

    def said(self, *arguments: str) -> str:
        """A label, a number or a size."""
        form, image = arguments[3:]
        if image not in self.labels:
            return ""
        if form == "{{.Id}}":
            return f"{image}{sorted(self.labels[image].items())}\n"
        label = re.search('"(.*)"', form)
        return f"{self.labels[image].get(label[1], '')}\n" if label else "1000000\n"


def test_only_what_has_changed_is_built(project: Path) -> None:
    """The second time nothing is; after a change of the code the images with code are, and what they replace goes."""
    docker = Engine()
    told = list(images.build(docker, recipe.TARGETS, "", project))
    assert [sentence.split(":")[0] for sentence in told] == ["fleetune-mounted", "fleetune-plan", "fleetune-train"]
    docker.done.clear()
    told = list(images.build(docker, recipe.TARGETS, "", project))
    assert docker.done == [] and all("nothing was done" in sentence for sentence in told)
    (project / "fleetune" / "code.py").write_text("more = 1\n")
    list(images.build(docker, recipe.TARGETS, "", project))
    assert [done for done in docker.done if "build" in done] == ["build fleetune-plan", "build fleetune-train"]
    assert sum(done.startswith("rm") for done in docker.done) == 2


def test_another_base_makes_other_images(project: Path) -> None:
    """Images are built anew on a base that has another number."""
    docker = Engine()
    list(images.build(docker, ["mounted"], "", project))
    docker.labels["mine"] = {}
    list(images.build(docker, ["mounted"], "mine", project))
    assert [done for done in docker.done if "build" in done] == ["build fleetune-mounted"] * 2


def test_client() -> None:
    """The first docker command that can build is taken: an older one, or one with its plugin."""
    none, newer, older, plugged = Fake(), Fake("28.2.2"), Fake("20.10.24"), Fake("28.2.2", "buildx")
    assert images.client([none, newer, older]) is older
    assert images.client([plugged, older]) is plugged
    with pytest.raises(Refused, match="buildx"):
        images.client([none, newer])


def test_choice_of_the_base() -> None:
    """What was asked for wins, and is pulled unless it is there; then an image that is there or can be pulled; else one
    of this machine."""
    away, there = Fake(), Fake("", "image")
    assert images.choose_base(away, "mine", "usual") == images.choose_base(there, "mine", "usual") == "mine"
    assert away.done == [("pull", "--quiet", "mine")] and there.done == []
    assert images.choose_base(there, "", "usual") == "usual"
    assert images.choose_base(Fake("", "pull"), "", "usual") == "usual"
    assert images.choose_base(Fake(), "", "usual") == ""
