"""What the images hold, what they say of themselves, and that stages run in them as the launcher runs them."""

import json
import os
import re
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from docker.types import Mount

from containers import images
from fleetune.contracts import json_io
from fleetune.contracts.task import StageTask
from fleetune.launching.docker import cleanup
from fleetune.planning import strategies
from stages.entry_point import Channel, StageContext
from stages.plan import plan
from tests.support.planning.instances import scored, small

PATIENCE_S = 120
PROJECT, PACKAGES = images.PROJECT, Path(sysconfig.get_path("purelib"))
EACH = pytest.mark.parametrize(
    "target", [pytest.param(target, marks=pytest.mark.image(target)) for target in images.TARGETS]
)
WITH_CODE = pytest.mark.parametrize(
    "target", [pytest.param(target, marks=pytest.mark.image(target)) for target in ("plan", "train")]
)
ADDRESS = re.compile(r"https?://|index[-_]url|PIP_|trusted-host|password|token", re.I)
COUNTED = """
import json, sys
from pathlib import Path
import fleetune.jit  # chooses how numba compiles, before numba is there
from numba.core import event
found = []

class Listener(event.Listener):
    def on_start(self, event):
        found.append(str(event.data))
    def on_end(self, event):
        pass

event.register("numba:compile", Listener())
from fleetune.contracts import json_io
from fleetune.contracts.task import StageTask
from stages.entry_point import Channel, StageContext
from stages.plan import plan
for file in sys.argv[1:]:
    plan(StageContext(task=json_io.read(StageTask, Path(file)), channel=Channel(sys.stdout)))
print(json.dumps(found))
"""


def _said(engine: Any, target: str, *command: str, **settings: Any) -> tuple[int, str, str]:
    """A command in a container that may do nothing and write nowhere but to /tmp: exit code, stdout, stderr."""
    container = engine.containers.create(
        images.tag(target),
        list(command),
        labels={"fleetune.test": "1", cleanup.OWNER_LABEL: cleanup.owner_label(os.getpid())},
        **{
            "read_only": True,
            "tmpfs": {"/tmp": ""},
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges"],
            "network_mode": "none",
            **settings,
        },
    )
    try:
        container.start()
        code = container.wait(timeout=PATIENCE_S)["StatusCode"]
        return code, *(container.logs(stdout=out, stderr=not out).decode() for out in (True, False))
    finally:
        container.remove(force=True, v=True)


@EACH
def test_what_an_image_says(engine: Any, target: str) -> None:
    """Its user is a number, only the mounted one is told to have everything mounted, and it is of what is here now."""
    found = engine.images.get(images.tag(target))
    labels = found.labels
    assert found.attrs["Config"]["User"] == "10001:10001"
    assert (labels.get("fleetune.mounted") == "1") is (target == "mounted")
    assert labels[images.RECIPE_LABEL] == images.recipe_digest(PROJECT, target)


@EACH
def test_no_address_and_no_secret(engine: Any, target: str) -> None:
    """Neither the steps that made an image nor what it tells its programs name an index, an address or a secret."""
    found = engine.images.get(images.tag(target))
    steps = [step["CreatedBy"] for step in found.history()]
    assert steps
    assert not [text for text in (*steps, *found.attrs["Config"]["Env"]) if ADDRESS.search(text)]


@EACH
def test_nobody(engine: Any, target: str) -> None:
    """What runs in it is not root, and cannot write to where code and packages are."""
    program = "import os; print(os.getuid(), os.access('/opt', os.W_OK), os.access('/tmp', os.W_OK))"
    assert _said(engine, target, "-c", program)[:2] == (0, "10001 False True\n")


@WITH_CODE
def test_it_holds_the_project(engine: Any, target: str) -> None:
    """Every file that stages need is there, templates too, and the bytecode of each module, but no Prefect."""
    program = (
        "import importlib.util, json, pathlib; root = pathlib.Path('/opt/fleetune/code'); "
        "print(json.dumps([sorted(str(p.relative_to(root)) for p in root.rglob('*') if p.is_file()), "
        "importlib.util.find_spec('prefect') is None]))"
    )
    files, without_prefect = json.loads(_said(engine, target, "-c", program)[1])
    here = [
        path.relative_to(PROJECT)
        for room in ("containers", "fleetune", "stages")
        for path in (PROJECT / room).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    assert {str(path) for path in here} == {file for file in files if "__pycache__" not in file}
    bytecode = {
        str(path.parent / "__pycache__" / f"{path.stem}.cpython-311.pyc") for path in here if path.suffix == ".py"
    }
    assert bytecode <= set(files)
    assert "fleetune/drawing/report.html" in files
    assert without_prefect


@pytest.mark.parametrize(
    ("target", "stages"),
    [
        pytest.param("plan", ("plan", "monitor"), marks=pytest.mark.image("plan")),
        pytest.param(
            "train",
            ("discover", "prepare", "profile", "plan", "train", "monitor", "evaluate"),
            marks=pytest.mark.image("train"),
        ),
    ],
)
def test_stages_start(engine: Any, target: str, stages: tuple[str, ...]) -> None:
    """Everything that its stages import is there."""
    program = f"import importlib; [importlib.import_module('stages.' + name) for name in {stages}]"
    code, _, errors = _said(engine, target, "-c", program)
    assert code == 0, errors


def test_the_mounted_image_is_thin(engine: Any) -> None:
    """It has Python and nothing else: neither our code nor a package."""
    program = "import importlib.util as u; print([n for n in ('fleetune', 'numpy', 'zmq') if u.find_spec(n)])"
    assert _said(engine, "mounted", "-c", program)[:2] == (0, "[]\n")


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """A task of the stage `plan` for each strategy, in a folder that any user may read and write."""
    problem = scored(small())
    _open(tmp_path)
    for kind, content in (("fleet", problem.fleet), ("profile", problem.profile)):
        json_io.write(content, _open(tmp_path / kind) / f"{kind}.json")
    for name in strategies():
        task = StageTask(
            stage="plan",
            run="a-run",
            seed=1,
            config={
                "strategy": {"name": name, "options": {}},
                "training": {"batch_samples": 12, "micro_batch_samples": 4},
            },
            inputs={kind: str(tmp_path / kind) for kind in ("fleet", "profile")},
            output=str(_open(tmp_path / "output" / name)),
            work=str(tmp_path),
        )
        json_io.write(task, _open(tmp_path / "tasks") / f"{name}.json")
    for path in tmp_path.rglob("*.json"):
        path.chmod(0o644)
    return tmp_path


def _open(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o777)
    return folder


def _bind(folder: Path, *, read_only: bool = True) -> Mount:
    return Mount(str(folder), str(folder), type="bind", read_only=read_only)


def _compiled(engine: Any, target: str, tasks: Path, mounts: list[Mount], **settings: Any) -> list[str]:
    """What was compiled while every strategy planned in one fresh container."""
    asked = [str(file) for file in sorted((tasks / "tasks").iterdir())]
    code, said, errors = _said(
        engine, target, "-c", COUNTED, *asked, mounts=[*mounts, _bind(tasks, read_only=False)], **settings
    )
    assert code == 0, errors
    assert {path.parent.parent.name for path in (tasks / "output").rglob("plan.json")} == set(strategies())
    found: list[str] = json.loads(said.splitlines()[-1])
    return found


@pytest.mark.image("plan")
def test_planning_in_an_image_compiles_nothing(engine: Any, tasks: Path) -> None:
    """On a root that cannot be written to, planners run the machine code that the image carries."""
    assert _compiled(engine, "plan", tasks, []) == []


def test_planning_in_a_mounted_image_compiles_nothing(engine: Any, tasks: Path) -> None:
    """Nor where code and packages of this machine are mounted: what was compiled here serves there."""
    for file in sorted((tasks / "tasks").iterdir()):
        with open(os.devnull, "w") as nowhere:
            plan(StageContext(task=json_io.read(StageTask, file), channel=Channel(nowhere)))
    for path in (tasks / "output").rglob("*"):
        path.chmod(0o777)
    mounts = [_bind(PROJECT / room) for room in ("containers", "fleetune", "stages")]
    settings = {"environment": {"PYTHONPATH": f"{PROJECT}:{PACKAGES}"}}
    assert _compiled(engine, "mounted", tasks, [*mounts, _bind(PACKAGES)], **settings) == []
