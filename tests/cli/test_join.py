"""`fleetune join` as a command: what it refuses, and how it ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fleetune.discovery.joining.network import LOOPBACK
from tests.support.cli.calls import Call
from tests.support.discovery.joining.both_sides import host, token_file
from tests.support.discovery.joining.fake_engine import fake_engine

PATIENCE_S = 60.0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give --token-file FILE to join, or --new-token FILE"),
        (["--token-file", "token", "--new-token", "other"], "one of the two"),
        (["--token-file", "token", "--engine", "tcp://192.0.2.1:2376"], "write unix:///PATH"),
        (["--token-file", "token", "--engine", "unix:///none"], "no engine answers at /none"),
        (["--token-file", "token", "--port", "70000"], "--port: a port is a number from 1 to 65535 (got 70000)"),
        (["--token-file", "token", "--host", "127.0.0.1:many"], "the port is no number; write ADDRESS:PORT"),
        (["--token-file", "token", "--host", "127.0.0.1:" + "7" * 5000], "the port is no number"),
        (["--token-file", "token", "--host", "127.0.0.1:0"], "a port is a number from 1 to 65535 (got 0)"),
        (["--token-file", "token", "--host", ":27613"], "give the address of one machine"),
        (["--token-file", "token", "--listen", "0.0.0.0"], "give the address of one machine"),
        (["--token-file", "token", "--listen", "a..b"], "no machine is found by 'a..b'"),
        (["--token-file", "token", "--listen", "192.0.2.200"], "192.0.2.200:any: cannot be listened on"),
        (["--token-file", "token", "--name", "a/b"], "'a/b' is not a name"),
        (["--token-file", "none"], "fleetune join --new-token none writes one"),
        (["--token-file", "open"], "run: chmod 600 open"),
        (["--new-token", "token"], "token: it exists"),
    ],
)
def test_refused(
    call: Call, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    """Bad options end in one sentence and exit code 64, before anything starts."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    token_file(tmp_path).rename("token")
    token_file(tmp_path).rename("open")
    Path("open").chmod(0o644)
    with fake_engine(tmp_path) as engine:
        monkeypatch.setenv("DOCKER_HOST", f"unix://{Path(engine).resolve()}")
        result = call("join", *arguments)
    assert (result.exit_code, result.stdout) == (64, "")
    assert said in result.stderr and len(result.stderr.splitlines()) == 1


def test_a_new_token(call: Call, root: Path) -> None:
    """The token file is readable by its owner only, and the output names the next command."""
    result = call("join", "--new-token", "fresh")
    assert result.exit_code == 0 and "fleetune join --token-file fresh" in result.stdout
    assert Path("fresh").stat().st_mode & 0o777 == 0o600
    assert Path("fresh").read_text().strip() not in result.output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_the_whole(tmp_path: Path, number: signal.Signals) -> None:
    """The command joins, states what it gives access to, and exits with 0 on SIGTERM; no file is left."""
    private = tmp_path / "private"
    private.mkdir()
    token = token_file(tmp_path)
    with fake_engine(tmp_path) as engine, host(token, tmp_path / "kept") as listening:
        command = ["join", "--token-file", str(token), "--name", "nano-1", "--listen", LOOPBACK]
        command += ["--host", f"{LOOPBACK}:{listening.port}", "--engine", f"unix://{Path(engine).resolve()}"]
        started = [sys.executable, "-c", "from flows.cli import main; main()", *command]
        environment = {**os.environ, "TMPDIR": str(private)}
        with subprocess.Popen(started, env=environment, stdout=subprocess.PIPE, text=True) as process:
            listening.said.wait("device nano-1 has joined")
            process.send_signal(number)
            told, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert "device nano-1: engine 9.9, 3 cores, 4.0 GB" in told
    assert "whoever has the token can use this machine's engine" in told
    assert told.endswith("this device has left: its engine is closed to others again\n")
    assert list(private.iterdir()) == []
