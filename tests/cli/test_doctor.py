"""`fleetune doctor` states what this machine can do."""

import json
import os
import socket
import threading
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from containers import engine_api, images
from flows import doctor
from tests.support.cli.calls import Call, document

INFORMATION = b'{"ServerVersion": "20.10", "CgroupVersion": "1"}'
TOPICS = ["Python", "torch", "prefect", "CPU cores", "Memory", "Accelerators", "Docker", "Disk", "Loopback", "Hub"]


@pytest.fixture(autouse=True)
def free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for this machine's memory, which other tests may have taken."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=8 << 30, available=4 << 30))


def test_doctor(call: Call, root: Path) -> None:
    """Every topic has a sentence, in the table and in JSON; nothing is written."""
    told = document(call("doctor", "--json"))
    found = {finding["topic"]: finding for finding in told["findings"]}
    assert told["ok"] and set(TOPICS) <= set(found)
    assert all(finding["words"] and finding["state"] in ("good", "limited") for finding in found.values())
    assert "==2.13.0" in found["torch"]["words"] and "3.11" in found["Python"]["words"]
    assert str(root) in found["Disk"]["words"]
    assert "engine" in found["Docker"]["words"]
    assert not root.exists()


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the query of PyTorch, which reports two accelerators."""
    found = [{"name": "big", "memory_bytes": 80_000_000_000}, {"name": "small", "memory_bytes": 8_000_000_000}]
    monkeypatch.setattr(doctor, "ACCELERATORS_PROGRAM", f"import json; print(json.dumps({found}))")


@pytest.mark.usefixtures("no_torch")
def test_accelerators() -> None:
    """Accelerators are named as a fleet file names them, with their memory."""
    found = {finding.topic: finding for finding in doctor.check_machine(Path("runs"))}
    assert "cuda:0 big (80.0 GB), cuda:1 small (8.0 GB)" in found["Accelerators"].words


@pytest.mark.usefixtures("no_torch")
def test_missing(call: Call, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing requirement ends the doctor with exit code 75 and is named."""

    def no_network(*_: Any, **__: Any) -> None:
        raise OSError(99, "Cannot assign requested address")

    monkeypatch.setattr(socket, "create_server", no_network)
    result = call("doctor")
    assert result.exit_code == 75
    assert "no run can work here until these are put right: Loopback" in result.stderr
    assert "127.0.0.1 does not carry bytes (Cannot assign requested address)" in result.stdout
    assert "this machine can run fleetune" not in result.stdout


@pytest.mark.usefixtures("no_torch")
def test_other_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of another version than required, or absent, is missing, and the finding names the remedy."""
    real = metadata.version

    def version(name: str) -> str:
        if name == "peft":
            raise metadata.PackageNotFoundError(name)
        return "9.9.9" if name == "torch" else real(name)

    monkeypatch.setattr(metadata, "version", version)
    found = {finding.topic: finding for finding in doctor.check_machine(Path("runs"))}
    assert found["torch"].state == doctor.MISSING and "9.9.9, but torch==2.13.0 is needed" in found["torch"].words
    assert found["peft"].state == doctor.MISSING and "not installed" in found["peft"].words
    assert found["prefect"].state == doctor.GOOD


@pytest.mark.usefixtures("no_torch")
def test_other_engine_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine on another machine is named as such, not contacted."""
    monkeypatch.setenv("DOCKER_HOST", "tcp://192.0.2.1:2376")
    found = {finding.topic: finding for finding in doctor.check_machine(Path("runs"))}
    assert "names another machine, not asked" in found["Docker"].words


@pytest.mark.usefixtures("no_torch")
@pytest.mark.parametrize(
    ("said", "words"),
    [
        ([INFORMATION, b"[]"], "engine 20.10 answers at"),
        ([b"[]"], "no engine at"),
        ([INFORMATION, b"[1]"], "no engine at"),
    ],
)
def test_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[bytes], words: str) -> None:
    """An engine that answers is named with its version; one that sends malformed answers counts as none."""
    found = _examined(tmp_path, monkeypatch, said)["Docker"]
    assert words in found.words
    assert ("unset DOCKER_HOST" in found.words) is (found.state == doctor.LIMITED)


@pytest.mark.usefixtures("no_torch")
def test_images_of_an_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Usable images are named; for the others the reason and the command that builds them are given."""
    listed = json.dumps([_image("mounted"), _image("train", **{images.RECIPE_LABEL: "another"})]).encode()
    found = _examined(tmp_path, monkeypatch, [INFORMATION, listed])["Images"]
    assert found.state == doctor.LIMITED
    assert found.words == (
        "fleetune-mounted; fleetune-plan is not built, fleetune-train is older than the code: "
        "make images ONLY='plan train'"
    )


@pytest.mark.usefixtures("no_torch")
@pytest.mark.parametrize(
    ("said", "state", "words"),
    [
        (sorted(images.TARGETS), doctor.GOOD, "fleetune-mounted, fleetune-plan, fleetune-train"),
        ([], doctor.LIMITED, "fleetune-mounted is not built"),
    ],
)
def test_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str], state: str, words: str) -> None:
    """Built images are listed; when none is built, one command builds all."""
    listed = json.dumps([_image(target) for target in said]).encode()
    found = _examined(tmp_path, monkeypatch, [INFORMATION, listed])["Images"]
    assert found.state == state and words in found.words
    assert found.words.endswith(": make images") is not bool(said)


def test_links(tmp_path: Path) -> None:
    """A kernel without traffic shaping limits emulation, and the missing modules are named."""
    modules = tmp_path / "lib" / "modules" / os.uname().release
    modules.mkdir(parents=True)
    (modules / "modules.dep").write_text("kernel/net/sched/sch_htb.ko:\n")
    found = doctor.check_links(tmp_path)
    assert found.state == doctor.LIMITED and "lacks cls_u32" in found.words
    assert "delays are added by the receiver" in found.words


@pytest.mark.usefixtures("no_torch")
def test_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When no engine answers, every address that was tried is named, and the command that starts an engine."""
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr(engine_api, "DEFAULT_SOCKET", str(tmp_path / "usual"))
    monkeypatch.setattr(engine_api, "FLEETUNE_SOCKET", str(tmp_path / "ours"))
    words = {finding.topic: finding for finding in doctor.check_machine(tmp_path)}["Docker"].words
    assert "usual (No such file or directory)" in words and "ours (No such file or directory)" in words
    assert "make engine" in words


def _examined(folder: Path, monkeypatch: pytest.MonkeyPatch, said: list[bytes]) -> dict[str, doctor.Finding]:
    """The findings for an engine that gives these answers, one for each request."""
    place = folder / "socket"
    with socket.create_server(str(place), family=socket.AF_UNIX) as server:
        server.settimeout(60)
        served = threading.Thread(target=_serve, args=(server, said))
        served.start()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{place}")
        found = {finding.topic: finding for finding in doctor.check_machine(folder)}
        served.join()
    return found


def _image(target: str, **labels: str) -> dict[str, Any]:
    """An image as an engine's API describes it, built from this checkout unless `labels` differ."""
    given = {images.RECIPE_LABEL: images.recipe_digest(images.PROJECT, target), **labels}
    return {"RepoTags": [f"{images.tag(target)}:latest"], "Labels": given}


def _serve(server: socket.socket, said: list[bytes]) -> None:
    """One answer for each connection."""
    for answer in said:
        line, _ = server.accept()
        with line:
            line.recv(4096)
            line.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(answer), answer))
