"""A folder of data is data: no library takes settings, modules or commands from the working directory."""

import os
import stat
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from fleetune.launching.process import child_command, inherited_environment
from fleetune.library_sources import CACHES, NOWHERE, close, is_private, private_cache, users_cache
from tests.support.filesystem.opened_files import opened_files

ROOT = Path(__file__).parents[2]
SETTINGS = """
.env prefect.toml pyproject.toml prefect.yaml profiles.toml logging.yml logging.conf logging.ini .prefectignore
.numba_config.yaml matplotlibrc config-defaults.yaml wandb/settings .wandb/settings MLproject mlflow.db .mlflow
setup.cfg tox.ini pytest.ini alembic.ini alembic.toml uvicorn.ini gunicorn.conf.py
.netrc _netrc .pypirc pip.conf pip.ini .pip/pip.conf .condarc .boto .s3cfg .aws/config .aws/credentials .pgpass
pg_service.conf .docker/config.json config.json .dockerignore .ssh/config .git/config .git/HEAD .gitconfig .gitmodules
.huggingface/token .cache/huggingface/token token dataset_infos.json .fsspec/conf.json fsspec.json .tensorboard
.triton/cache .torch _ops.py _classes.py src/x.py .pdbrc .pythonrc.py .pythonstartup .coveragerc .python-version
nvidia.conf ld.so.preload openssl.cnf .curlrc .wgetrc krb5.conf resolv.conf hosts .inputrc .ortools .joblib
""".split()
"""Files that a library, or a program that it starts, reads somewhere as its settings."""
CONTENTS = {
    "prefect.toml": "[logging]\nsettings_path = '{folder}/logging.yml'\n",
    "pyproject.toml": "[tool.prefect.logging]\nsettings_path = '{folder}/logging.yml'\n",
    ".env": "PREFECT_LOGGING_SETTINGS_PATH={folder}/logging.yml\nPREFECT_PROFILES_PATH={folder}/profiles.toml\n",
    "profiles.toml": "active = 'x'\n[profiles.x]\nPREFECT_LOGGING_SETTINGS_PATH = '{folder}/logging.yml'\n",
    ".numba_config.yaml": "disable_jit: 1\n",
    "logging.yml": "version: 1\nhandlers: {{x: {{'()': os.mkdir, path: '{folder}/executed'}}}}\n",
}


def plant(folder: Path) -> None:
    """Plant all such files, and a module for every one that is installed, and for some of Python itself."""
    standard = (
        "json",
        "logging",
        "mailbox",
        "sitecustomize",
        "usercustomize",
        "conftest",
        "asyncio",
        "sqlite3",
        "typing",
    )
    modules = {*metadata.packages_distributions(), *standard}
    for name in (*SETTINGS, *(f"{module}.py" for module in modules if module.isidentifier())):
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        text = CONTENTS.get(name, "import os; os.mkdir({folder!r} + '/executed')\n" if name.endswith(".py") else "")
        place.write_text(text.format(folder=str(folder)))


@pytest.mark.timeout(600)
def test_nothing_is_read_of_the_working_directory(tmp_path: Path) -> None:
    """Bug: Prefect took settings from three files there, of which a configuration of logging ran a command; its
    migrations put the folder before all packages; numba and wandb read files of their own. Now no process opens a file
    there: not one that imports and uses all libraries, nor Prefect's server, nor commands, nor what they start.
    """
    folder, home = tmp_path / "data", tmp_path / "home"
    for each in (folder, home):
        each.mkdir()
    plant(folder)
    plain = {name: text for name, text in os.environ.items() if not name.startswith(("PREFECT", "XDG", *CACHES))}
    environment = {**plain, "HOME": str(home), "PYTHONPATH": str(ROOT)}
    program = [sys.executable, "-P", "-c", "from flows.cli import main; main()"]
    commands = [
        [*child_command(0), "tests.support.flows.all_libraries", str(tmp_path / "store" / "prefect")],
        [*program, "doctor"],
        [*program, "runs", "--root", str(tmp_path / "store")],
    ]
    with opened_files(folder) as opened:
        for command in commands:
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
            assert not opened.found(), command
            assert "Traceback" not in done.stderr and done.stdout, done.stderr
    assert not (folder / "executed").exists()


def test_a_path_that_children_inherit_names_no_working_directory() -> None:
    """An empty part of PYTHONPATH stands for the working directory, and a relative one lies in it."""
    path = os.pathsep.join(("", "/own", ".", "lib", "/other"))
    assert inherited_environment({"PYTHONPATH": path})["PYTHONPATH"] == f"/own{os.pathsep}/other"
    assert "PYTHONPATH" not in inherited_environment({"PYTHONPATH": ".:"})
    assert not Path(NOWHERE).exists()


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder in which everybody may write and rename."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    return tmp_path / "shared"


def test_caches_lie_where_nobody_else_can_write(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache holds code, such as pickles of numba. Bug: torch kept one below /tmp under a known name."""
    own = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    close(own)
    assert own["WANDB_DISABLE_GIT"] == "true"
    assert own["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "cache" / "fleetune" / "torchinductor")
    assert users_cache(own) == tmp_path / "cache" / "fleetune"
    monkeypatch.setattr("tempfile.tempdir", str(shared))
    given = {**dict.fromkeys(CACHES, str(shared / "code")), "XDG_CACHE_HOME": str(shared)}
    close(given)
    assert given.keys() & CACHES.keys() == {"TORCHINDUCTOR_CACHE_DIR"} and users_cache(given) is None
    assert not given["TORCHINDUCTOR_CACHE_DIR"].startswith(str(shared / f"fleetune-{os.getuid()}"))


def test_a_cache_in_a_sticky_folder_is_ones_own(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a user has no home it is a folder of /tmp that nobody else made, may enter, or may rename."""
    shared.chmod(0o1777)
    monkeypatch.setattr("tempfile.tempdir", str(shared))
    homeless = {"XDG_CACHE_HOME": "here"}
    made = private_cache(homeless)
    assert made == shared / f"fleetune-{os.getuid()}" == private_cache(homeless)
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    made.chmod(0o777)
    other = private_cache(homeless)
    assert other != made and stat.S_IMODE(other.stat().st_mode) == 0o700
    made.rmdir()
    made.symlink_to(other)
    assert private_cache(homeless) != made


@pytest.mark.parametrize(("mode", "private"), [(0o755, True), (0o777, False), (0o1777, False)])
def test_who_could_change_a_folder(mode: int, private: bool, tmp_path: Path) -> None:
    """The folder's own mode counts, that of each folder above it, and where links lead."""
    (tmp_path / "above" / "cache").mkdir(parents=True)
    (tmp_path / "above").chmod(mode)
    (tmp_path / "link").symlink_to(tmp_path / "above")
    assert is_private(tmp_path / "above") is is_private(tmp_path / "link" / "new") is private
    assert is_private(tmp_path / "above" / "cache") is (mode != 0o777)
    assert not is_private(Path("relative"))


@pytest.mark.parametrize(
    ("cache", "home", "found"),
    [
        ("/cache", "/folder/a", Path("/cache/fleetune")),
        ("", "/folder/a", Path("/folder/a/.cache/fleetune")),
        ("here", "", None),
    ],
)
def test_users_cache(monkeypatch: pytest.MonkeyPatch, cache: str, home: str, found: Path | None) -> None:
    """The user's cache follows XDG_CACHE_HOME; a relative path is ignored."""
    monkeypatch.setenv("HOME", home)
    assert users_cache({"XDG_CACHE_HOME": cache}) == found


def test_where_nothing_can_be_written_there_is_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a read-only container without /tmp everything is imported all the same."""
    monkeypatch.setattr("tempfile.tempdir", NOWHERE)
    assert private_cache({"XDG_CACHE_HOME": "here"}) == Path(NOWHERE)
