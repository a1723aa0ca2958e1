"""Bad input ends in one sentence on stderr and exit code 64: no traceback, nothing on stdout, nothing written."""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fleetune import filesystem
from fleetune.errors import Refused
from flows import api
from tests.support.cli.calls import Call, files
from tests.support.cli.runs import add_run

CONFIGS = Path(__file__).parents[2] / "configs"
DEMO = CONFIGS / "runs" / "demo.yaml"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Missing command"),
        (["go"], "No such command 'go'"),
        (["ups"], "Did you mean 'up'? See fleetune --help."),
        (["run", "dmeo"], "dmeo"),
        (["run"], "Missing argument 'config'"),
        (["run", DEMO, "--sets", "a=1"], "No such option: --sets"),
        (["run", "none.yaml"], "none.yaml: cannot be read (No such file or directory); give an existing YAML file"),
        (["run", CONFIGS], "cannot be read (Is a directory)"),
        (["run", "broken.yaml"], "broken.yaml: line 2, column 6: key 'name' is given twice"),
        (["run", "binary.yaml"], "binary.yaml: line 2: byte 0xff is not text in UTF-8; give a YAML file"),
        (["run", "control.yaml"], "control.yaml: line 3: character U+0007 is not allowed in YAML"),
        (["run", DEMO, "--set", "training.round=3"], "training.round: unknown key; allowed are rounds, batch_samples"),
        (["run", DEMO, "--set", "training.rounds=-3"], "training: rounds must be a number above 0 (got -3)"),
        (["run", DEMO, "--set", "training.beta2=1"], "training: beta2 must be below 1 (got 1.0)"),
        (["run", DEMO, "--set", "model.freeze=['(']"], "model: freeze has '(', which is not a regular expression"),
        (["run", DEMO, "--set", "training.optimizer=lion"], "optimizer is 'lion'; allowed are adamw, sgd"),
        (
            ["run", DEMO, "--set", "training.micro_batch_samples=5"],
            "5 does not divide batch_samples 32; choose a divisor",
        ),
        (["run", DEMO, "--set", "strategy.name=magic"], "strategy.name is 'magic'; allowed are asteroid, d2ft, dp"),
        (["run", DEMO, "--set", "training.rounds"], "write KEY=VALUE such as training.rounds=10"),
        (["run", DEMO, "--set", "seed={"], "--set seed={: line 1"),
        (["run", DEMO, "--set", "fleet=many"], "asteroid-d, edge-docker, here"),
        (["run", DEMO, "--set", "data.source=none.csv", "--dry-run"], "data.source: 'none.csv' does not exist"),
        (["runs", "--root", ""], "--root: it is empty; give a folder"),
        (["show", "nothing"], "run 'nothing': there is none"),
        (["show", "latest"], "run 'latest': there is none"),
        (["verify", "nothing"], "run 'nothing': there is none"),
        (["rerun", "nothing", "--from", "train"], "run 'nothing': there is none"),
        (["diff", "nothing", "nothing"], "run 'nothing': there is none"),
        (["diff", "nothing"], "Missing argument 'other'"),
    ],
)
@pytest.mark.parametrize("program", [False, True], ids=["person", "json"])
def test_refused(call: Call, root: Path, arguments: list[str | Path], said: str, program: bool) -> None:
    """The sentence names what was given and what is allowed, and stdout is empty, with --json too."""
    (root.parent / "broken.yaml").write_text("a: {name: x,\n     name: y}\n")
    (root.parent / "binary.yaml").write_bytes("name: größer\n".encode() + b"\xff\x00")
    (root.parent / "control.yaml").write_text("name: x\nseed: 1\nmodel: \x07\n")
    result = call(*arguments, *(["--json"] if program and len(arguments) > 1 else []))
    assert (result.exit_code, result.stdout) == (64, "")
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not root.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", DEMO, "--dry-run", "--set", "data.source=~/x.csv"], "data.source: '~/x.csv' does not exist"),
        (["join", "--new-token", "~/x"], "~/x: cannot be written (No such file or directory); give another file"),
        (["runs", "--root", "memory://x"], "needs a cache in the home of this user, who has none; set HOME"),
        (["up"], "this user has no home: HOME is not set, and no account names one; set HOME to a folder of yours"),
    ],
)
def test_a_user_without_a_home(
    call: Call, monkeypatch: pytest.MonkeyPatch, arguments: list[str | Path], said: str
) -> None:
    """A user whom no account names, as in many containers, gets a sentence, and never a traceback about the home."""

    def none(_: int) -> None:
        raise KeyError

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", none)
    monkeypatch.setattr("os.getuid", lambda: 12345)
    result = call(*arguments)
    assert (result.exit_code, len(result.stderr.splitlines())) == (64, 1), result.stderr
    assert said in result.stderr


def test_a_home_that_others_can_write(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store elsewhere has its cache in a home that nobody else can fill."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home").chmod(0o777)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    result = call("runs", "--root", "memory://x")
    assert (result.exit_code, len(result.stderr.splitlines())) == (64, 1), result.stderr
    assert "needs a cache, but others could change what is in" in result.stderr
    assert not list((tmp_path / "home").iterdir())


def test_a_path_that_is_not_utf_8(call: Call, root: Path) -> None:
    """No record can hold such a path: it is refused by name, as the store's and in a config, before anything runs."""
    odd = root.parent / "odd\udcff"
    odd.mkdir()
    (odd / "x.csv").write_text("text,label\na,b\n")
    assert f"store: {ascii(str(odd / 'kept'))} is not UTF-8" in call("runs", "--root", odd / "kept").stderr
    shutil.copytree(CONFIGS, odd / "all")
    run_file = odd / "all" / "runs" / "mine.yaml"
    run_file.write_text(re.sub("(?m)^data:.*$", "data: {source: ../../x.csv}", DEMO.read_text()))
    refused = call("run", run_file, "--dry-run")
    assert refused.exit_code == 64 and "x.csv" in refused.stderr and "is not UTF-8" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show", "small-"], "several begin like that (small-1, small-2); give more of its id"),
        (["show", "small-1", "trian"], "no stage 'trian'; it has train, evaluate"),
        (["show", "small-3"], "run 'small-3': there is none; the newest are small-1, small-2"),
        (
            ["rerun", "small-1", "--from", "trian"],
            "stage 'trian' does not exist; stages are discover, prepare, profile",
        ),
        (
            ["rerun", "small-1", "--only", "trian"],
            "stage 'trian' does not exist; stages are discover, prepare, profile",
        ),
        (
            ["rerun", "small-1", "--set", "training.rounds=0"],
            "small-1: training: rounds must be a number above 0 (got 0)",
        ),
        (["rerun", "small-1", "--set", "fleet.devices.third=0"], "no member named 'third'; its names are fast, slow"),
    ],
)
def test_refused_beside_what_is_there(call: Call, root: Path, arguments: list[str], said: str) -> None:
    """A refusal about a run leaves every file of the store as it was."""
    add_run(root, 1)
    add_run(root, 2)
    before = files(root)
    result = call(*arguments)
    assert (result.exit_code, result.stdout) == (64, "")
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert files(root) == before


def test_root_that_is_a_file(call: Call, root: Path) -> None:
    """A root that is a file is refused by name and stays unchanged."""
    root.write_text("mine")
    result = call("runs")
    assert result.exit_code == 64
    assert f"--root {root}: it is a file; give a folder" in result.stderr
    assert root.read_text() == "mine"


def test_root_that_cannot_be_written(tmp_path: Path) -> None:
    """A root in which no folder can be created is refused by name before Prefect starts."""
    (tmp_path / "file").write_text("mine")
    with pytest.raises(Refused, match=r"--root .*inside: cannot be written to \(Not a directory\)"):
        api.check_writable(tmp_path / "file" / "inside")


def test_as_a_process(tmp_path: Path) -> None:
    """The installed command behaves alike: one sentence, exit code 64, nothing written."""
    command = [str(Path(sys.executable).with_name("fleetune")), "run", str(DEMO), "--set", "training.pace=1"]
    ended = subprocess.run([*command, "--root", "kept"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (64, "")
    assert ended.stderr.startswith(f"{DEMO}: training.pace: unknown key; allowed are rounds, ")
    assert len(ended.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_root_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is detected by a test file before Prefect starts."""

    def full(dir: Path) -> object:
        return open("/dev/full", "wb", buffering=0)

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(OSError, match="No space left") as caught:
        api.check_writable(tmp_path)
    assert str(filesystem.disk_error(caught.value, filesystem.folders(tmp_path))).startswith(
        f"the disk of {tmp_path} (mounted at "
    )


def test_root_that_nobody_may_look_at(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a root without permission ended in an unforeseen PermissionError."""

    def locked(self: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "exists", locked)
    result = call("runs", "--root", "locked")
    assert (result.exit_code, result.stderr) == (
        64,
        "--root locked: cannot be looked at (Permission denied); give another folder\n",
    )
