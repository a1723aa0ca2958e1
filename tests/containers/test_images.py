"""The Dockerfile, the inputs of images and their builds, tested without an engine."""

import ast
import re
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from containers import images
from fleetune.errors import Refused

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PLAN_PACKAGES = ("clock", "contracts", "planning", "solving", "store")
DISTRIBUTIONS = {"jinja2": "jinja2", "zmq": "pyzmq"}
STAGES = dict(re.findall(r"^FROM \S+ AS (\S+)\n(.*?)(?=^FROM |\Z)", DOCKERFILE, re.M | re.S))
BASES = {name: base for base, name in re.findall(r"^FROM (\S+) AS (\S+)$", DOCKERFILE, re.M)}
"""Stage -> its steps, and what it grows from."""


def test_targets() -> None:
    """Every image is a target of the Dockerfile."""
    assert set(images.TARGETS) <= set(re.findall(r" AS (\S+)$", DOCKERFILE, re.M))


def test_no_address_and_no_network() -> None:
    """No step names an address, an index or a secret, and pip installs from the gathered wheels only."""
    assert not re.search(r"https?:|index-url|trusted-host|\bADD\b|secret=", DOCKERFILE)
    steps = [line for line in DOCKERFILE.splitlines() if '"pip"' in line]
    assert steps and all('"--no-index"' in step and '"--no-cache-dir"' in step for step in steps)


@pytest.mark.parametrize("target", images.TARGETS)
def test_no_image_runs_as_root(target: str) -> None:
    """All images grow from one stage, and the last user that is set on the way is another one than root."""
    line = [target]
    while line[-1] in BASES:
        line.append(BASES[line[-1]])
    users = [user for stage in reversed(line[:-1]) for user in re.findall(r"^USER (.*)$", STAGES[stage], re.M)]
    assert "thin" in line and users[-1] == "10001:10001"


def test_only_the_mounted_image_has_its_label() -> None:
    """Only the image without code and packages has the label that makes a launcher mount them."""
    stage = re.search(r"^FROM thin AS mounted\n(.*?)\n\n", DOCKERFILE, re.M | re.S)
    assert stage is not None and stage[1] == "LABEL fleetune.mounted=1"
    assert DOCKERFILE.count("LABEL") == 1


def test_no_step_needs_a_shell() -> None:
    """Every step is a list of words, so that it runs on a base image without a shell."""
    steps = re.findall(r"^RUN (?:--mount\S+ \\\n +)*(.*)$", DOCKERFILE, re.M)
    assert len(steps) == DOCKERFILE.count("\nRUN ")
    assert all(isinstance(ast.literal_eval(step), list) for step in steps)


@pytest.mark.parametrize("target", images.TARGETS)
def test_wheels_of_every_stage_are_gathered(target: str) -> None:
    """The build of an image gathers the wheels of all stages that it needs, also where the other images are current and
    the engine has forgotten their steps."""
    reached, todo = set[str](), [target]
    while todo:
        stage = todo.pop()
        if stage in STAGES and stage not in reached:
            reached.add(stage)
            todo += [BASES[stage], *re.findall(r"from=([\w-]+)", STAGES[stage])]
    assert {found for stage in reached for found in re.findall(r"build/wheels/(\w+)", STAGES[stage])} == set(
        images.WHEELS[target]
    )


@pytest.mark.parametrize("target", ["plan", "train"])
def test_packages(target: str) -> None:
    """Only the image `train` has torch, and no image has Prefect."""
    asked = {Requirement(text).name for text in images.requirements(ROOT, target)}
    assert ("torch" in asked) is (target == "train")
    assert "prefect" not in asked


def test_packages_are_pinned() -> None:
    """The constraints pin every package of an image to one version."""
    pinned = {canonicalize_name(line.split("==")[0]) for line in (ROOT / "constraints.txt").read_text().split()}
    asked = {canonicalize_name(Requirement(text).name) for text in images.requirements(ROOT, "train")}
    assert asked <= pinned


def test_plan_has_what_planning_imports() -> None:
    """The image `plan` has every library that planning imports."""
    files = [path for package in PLAN_PACKAGES for path in (ROOT / "fleetune" / package).rglob("*.py")]
    imported = {name.split(".")[0] for path in files for name in _imports(path)}
    others = imported - set(sys.stdlib_module_names) - {"fleetune", "pydantic_core"}
    asked = {Requirement(text).name for text in images.requirements(ROOT, "plan")}
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
        images.requirements(tmp_path, "plan")
    with pytest.raises(Refused, match="no image 'other'; there are plan"):
        images.requirements(tmp_path, "other")


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
    for folder in images.COPIED_FOLDERS:
        (tmp_path / folder / "__pycache__").mkdir(parents=True)
    (tmp_path / "fleetune" / "code.py").write_text("")
    wheels_folder = tmp_path / "build" / "wheels"
    wheels_folder.mkdir(parents=True)
    for target in ("plan", "train"):
        (wheels_folder / f"{target}.made").write_text(images.wheels_digest(tmp_path, target))
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
    """The digest of an image changes exactly when one of its inputs changes."""
    before = {target: images.recipe_digest(project, target) for target in images.TARGETS}
    with (project / file).open("a") as text:
        text.write("# more\n")
    assert {target for target in before if images.recipe_digest(project, target) != before[target]} == changed


def test_unusable_reason(project: Path) -> None:
    """A current image is usable; a missing or older one is reported as such."""
    labels = {images.RECIPE_LABEL: images.recipe_digest(project, "plan")}
    found = {"fleetune-plan:latest": labels, "fleetune-train:latest": {}}
    assert images.unusable_reason(found, "plan", project) == ""
    assert images.unusable_reason(found, "train", project) == "fleetune-train is older than the code"
    assert images.unusable_reason(found, "mounted", project) == "fleetune-mounted is not built"


class Fake(images.DockerCommand):
    """A docker command that succeeds for given words only, and records the rest."""

    def __init__(self, version: str = "", *works: str) -> None:
        self.version, self.working = version, works
        self.done: list[tuple[str, ...]] = []

    def run(self, *arguments: str) -> None:
        """Record the command."""
        self.done.append(arguments)

    def succeeds(self, *arguments: str, timeout_s: float | None = None) -> bool:
        """True for the first words that were given."""
        return arguments[0] in self.working

    def output(self, *arguments: str) -> str:
        """The version that was given."""
        return self.version


class Engine(images.DockerCommand):
    """A docker command with a simulated engine that records builds and removals."""

    def __init__(self) -> None:
        self.labels: dict[str, dict[str, str]] = {"usual": {}}
        self.done: list[str] = []

    def succeeds(self, *arguments: str, timeout_s: float | None = None) -> bool:
        """Inspecting succeeds for existing images; removing always succeeds."""
        if arguments[1] == "rm":
            self.done.append(f"rm {arguments[2]}")
            return True
        return arguments[:2] == ("image", "inspect") and arguments[2] in self.labels

    def run(self, *arguments: str) -> None:
        """Build an image: store its labels."""
        tag = arguments[arguments.index("--tag") + 1]
        labels = [arguments[i + 1] for i, word in enumerate(arguments) if word == "--label"]
        self.labels[tag] = dict(label.split("=", 1) for label in labels)
        self.done.append(f"{arguments[0]} {tag}")

    def output(self, *arguments: str) -> str:
        """A label, an id or a size of an image."""
        form, image = arguments[3:]
        if image not in self.labels:
            return ""
        if form == "{{.Id}}":
            return f"{image}{sorted(self.labels[image].items())}\n"
        label = re.search('"(.*)"', form)
        return f"{self.labels[image].get(label[1], '')}\n" if label else "1000000\n"


def test_only_what_has_changed_is_built(project: Path) -> None:
    """A second build does nothing; after a change of code the images with code are rebuilt and the old ones removed."""
    docker = Engine()
    told = list(images.build(docker, images.TARGETS, "", project))
    assert [sentence.split(":")[0] for sentence in told] == ["fleetune-mounted", "fleetune-plan", "fleetune-train"]
    docker.done.clear()
    told = list(images.build(docker, images.TARGETS, "", project))
    assert docker.done == [] and all("nothing was done" in sentence for sentence in told)
    (project / "fleetune" / "code.py").write_text("more = 1\n")
    list(images.build(docker, images.TARGETS, "", project))
    assert [done for done in docker.done if "build" in done] == ["build fleetune-plan", "build fleetune-train"]
    assert sum(done.startswith("rm") for done in docker.done) == 2


def test_another_base_makes_other_images(project: Path) -> None:
    """A base image with another id makes images be built again."""
    docker = Engine()
    list(images.build(docker, ["mounted"], "", project))
    docker.labels["mine"] = {}
    list(images.build(docker, ["mounted"], "mine", project))
    assert [done for done in docker.done if "build" in done] == ["build fleetune-mounted"] * 2


def test_choice_of_the_docker_command() -> None:
    """The first docker command that can build is chosen: an old one, or one with the buildx plugin."""
    none, newer, older, plugged = Fake(), Fake("28.2.2"), Fake("20.10.24"), Fake("28.2.2", "buildx")
    assert images.choose_docker_command([none, newer, older]) is older
    assert images.choose_docker_command([plugged, older]) is plugged
    with pytest.raises(Refused, match="buildx"):
        images.choose_docker_command([none, newer])


def test_choice_of_the_base() -> None:
    """A requested base is used, and pulled where it is missing; else the default where it can be had; else none."""
    away, there = Fake(), Fake("", "image")
    assert images.choose_base(away, "mine", "usual") == images.choose_base(there, "mine", "usual") == "mine"
    assert away.done == [("pull", "--quiet", "mine")] and there.done == []
    assert images.choose_base(there, "", "usual") == "usual"
    assert images.choose_base(Fake("", "pull"), "", "usual") == "usual"
    assert images.choose_base(Fake(), "", "usual") == ""
