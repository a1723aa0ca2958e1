"""The doctor says in words what this machine can do."""

import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from containers import answers
from flows import doctor
from tests.cli.conftest import Call, document

INFORMATION = b'{"ServerVersion": "20.10", "CgroupVersion": "1"}'
TOPICS = ["Python", "torch", "prefect", "CPU cores", "Memory", "Accelerators", "Docker", "Disk", "Loopback", "Hub"]


def test_doctor(call: Call, root: Path) -> None:
    """Every topic gets words, for people and programs alike; looking writes nothing."""
    told = document(call("doctor", "--json"))
    found = {finding["topic"]: finding for finding in told["findings"]}
    assert told["ok"] and set(TOPICS) <= set(found)
    assert all(finding["words"] and finding["state"] in ("good", "limited") for finding in found.values())
    assert "==2.13.0" in found["torch"]["words"] and "3.11" in found["Python"]["words"]
    assert str(root) in found["Disk"]["words"]
    assert "devices run as processes" in found["Docker"]["words"]
    assert not root.exists()


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch is not started to be asked for accelerators: it finds two."""
    found = [{"name": "big", "memory_bytes": 80_000_000_000}, {"name": "small", "memory_bytes": 8_000_000_000}]
    monkeypatch.setattr(doctor, "ASK_TORCH", f"import json; print(json.dumps({found}))")


@pytest.mark.usefixtures("no_torch")
def test_accelerators() -> None:
    """Accelerators are named as a fleet file names them, with their memory."""
    found = {finding.topic: finding for finding in doctor.examine(Path("runs"))}
    assert "cuda:0 big (80.0 GB), cuda:1 small (8.0 GB)" in found["Accelerators"].words


@pytest.mark.usefixtures("no_torch")
def test_missing(call: Call, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What no run works without ends the doctor with exit code 75 and its name."""

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
    """A package in another version than asked for, or none at all, is missing, with what to do."""
    real = doctor.metadata.version

    def version(name: str) -> str:
        if name == "peft":
            raise doctor.metadata.PackageNotFoundError(name)
        return "9.9.9" if name == "torch" else real(name)

    monkeypatch.setattr(doctor.metadata, "version", version)
    found = {finding.topic: finding for finding in doctor.examine(Path("runs"))}
    assert found["torch"].state == doctor.MISSING and "9.9.9, but torch==2.13.0 is needed" in found["torch"].words
    assert found["peft"].state == doctor.MISSING and "not installed" in found["peft"].words
    assert found["prefect"].state == doctor.GOOD


@pytest.mark.usefixtures("no_torch")
def test_other_engine_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine on another machine is named as such, not contacted."""
    monkeypatch.setenv("DOCKER_HOST", "tcp://192.0.2.1:2376")
    found = {finding.topic: finding for finding in doctor.examine(Path("runs"))}
    assert "names another machine, not asked" in found["Docker"].words


@pytest.mark.usefixtures("no_torch")
def test_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that answers is named with its version; one that talks nonsense counts as none."""
    for answer, words in ((INFORMATION, "engine 20.10 answers at"), (b"[]", "no engine at")):
        place = tmp_path / str(len(answer))
        with socket.create_server(str(place), family=socket.AF_UNIX) as server:
            served = threading.Thread(target=_serve, args=(server, answer))
            served.start()
            monkeypatch.setenv("DOCKER_HOST", f"unix://{place}")
            found = {finding.topic: finding for finding in doctor.examine(tmp_path)}
            served.join()
        assert words in found["Docker"].words
    assert "unset DOCKER_HOST" in found["Docker"].words


@pytest.mark.usefixtures("no_torch")
def test_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing answers, every place that was asked is named, and what starts an engine."""
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr(answers, "USUAL", str(tmp_path / "usual"))
    monkeypatch.setattr(answers, "OURS", str(tmp_path / "ours"))
    words = {finding.topic: finding for finding in doctor.examine(tmp_path)}["Docker"].words
    assert "usual (No such file or directory)" in words and "ours (No such file or directory)" in words
    assert "make engine" in words


def _serve(server: socket.socket, answer: bytes) -> None:
    line, _ = server.accept()
    with line:
        line.recv(4096)
        line.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(answer), answer))
