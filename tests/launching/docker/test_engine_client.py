"""Connections to fake engines, and the errors where connecting fails."""

import gc
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fleetune.contracts.fleet import Engine
from fleetune.errors import Refused, TryAgain
from fleetune.launching.docker import engine_client
from fleetune.launching.docker.transports import ssh_command
from tests.support.engine.certificates import Authority
from tests.support.launching.docker.fake_engine import ANSWERS, INFO, context, on_port, on_socket


@pytest.fixture(autouse=True)
def nothing_open() -> Iterator[None]:
    """Collect garbage: a socket or process left open then warns, and warnings are errors."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders with certificates: a server, a client of its CA, a client of another CA, a server at another address."""
    folder = tmp_path_factory.mktemp("pki")
    own, other = Authority(), Authority()
    here = ("127.0.0.1",)
    return {
        "server": own.issue(folder / "server", addresses=here),
        "client": own.issue(folder / "client"),
        "stranger": other.issue(folder / "stranger"),
        "elsewhere": own.issue(folder / "elsewhere", addresses=("192.0.2.7",)),
    }


def tls_engine(address: str, folder: Path) -> Engine:
    """An engine called pi."""
    return Engine(name="pi", address=address, tls=str(folder))


def fake_ssh(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> Path:
    """Replace `ssh` by a shell script; returns the file that it writes its arguments to."""
    folder.mkdir()
    program, arguments = folder / "ssh", folder / "arguments"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >> {arguments}\n{script}\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return arguments


def test_connect_by_socket(tmp_path: Path) -> None:
    """`connect` speaks the version of the API that the engine reports."""
    with on_socket(tmp_path / "s") as address:
        with closing(engine_client.connect(Engine(name="pi", address=address))) as client:
            assert client.api.api_version == "1.41"
            assert engine_client.describe_engine(client).cores == 4


def test_the_local_engine_behind_a_socket(tmp_path: Path) -> None:
    """The engine of a DOCKER_HOST with a unix socket counts as one of this machine."""
    with on_socket(tmp_path / "s") as address:
        found = engine_client.local_engine({"DOCKER_HOST": address})
        assert found.address == address and found.is_here
        engine_client.connect(None, {"DOCKER_HOST": address}).close()


def test_the_id_of_an_image(tmp_path: Path) -> None:
    """An image of the local engine is known by its id; one that is not there, and no engine, are named."""
    images = {"/v1.41/images/mine/json": {"Id": "sha256:a"}, "/v1.41/images/json": []}
    with on_socket(tmp_path / "s", {**ANSWERS, **images}) as address:
        assert engine_client.image_id("mine", {"DOCKER_HOST": address}) == "sha256:a"
        with pytest.raises(Refused, match="has no image other"):
            engine_client.image_id("other", {"DOCKER_HOST": address})
    with pytest.raises(TryAgain, match="no container engine answers"):
        engine_client.image_id("mine", {"DOCKER_HOST": f"unix://{tmp_path}/none"})


def test_docker_host_on_another_machine(pki: dict[str, Path]) -> None:
    """The engine of a DOCKER_HOST with TLS or ssh counts as one of another machine."""
    with on_port(context(pki["server"])) as address:
        environment = {"DOCKER_HOST": address, "DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": str(pki["client"])}
        assert not engine_client.local_engine(environment).is_here
        engine_client.connect(None, environment).close()
    assert engine_client.local_engine({"DOCKER_HOST": "ssh://me@pi"}).address == "ssh://me@pi"


def test_docker_host_without_tls_is_refused() -> None:
    """A DOCKER_HOST without TLS is refused, and the message names the missing settings."""
    with pytest.raises(Refused, match=r"DOCKER_TLS_VERIFY is not set.*DOCKER_CERT_PATH"):
        engine_client.connect(None, {"DOCKER_HOST": "tcp://192.0.2.1:2375"})


@pytest.mark.parametrize("scheme", ["tcp", "ssh", "http"])
def test_a_password_in_docker_host_is_not_shown(scheme: str) -> None:
    """Bug: the refusal of a DOCKER_HOST without TLS had the address with its password."""
    with pytest.raises(Refused, match="DOCKER_HOST: the URL holds a password.*leave it out") as caught:
        engine_client.local_engine({"DOCKER_HOST": f"{scheme}://ann:hush@192.0.2.1:2375"})
    assert "hush" not in str(caught.value)


def test_a_socket_without_an_engine(tmp_path: Path) -> None:
    """A socket without an engine raises TryAgain, which names the socket and what to do."""
    with pytest.raises(TryAgain, match=rf"answers at {tmp_path}/none \(No such file.*\): run make engine.*doctor"):
        engine_client.connect(None, {"DOCKER_HOST": f"unix://{tmp_path}/none"})
    with pytest.raises(TryAgain, match=rf"engine pi does not answer at {tmp_path}/none .*: start it"):
        engine_client.connect(Engine(name="pi", address=f"unix://{tmp_path}/none"))


def test_a_port_without_an_engine(pki: dict[str, Path]) -> None:
    """A port without an engine raises TryAgain, which names the address."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(TryAgain, match=rf"engine pi \({address}\) does not answer \(Connection refused\): start"):
            engine_client.connect(tls_engine(address, pki["client"]))


def test_a_silent_machine(pki: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """`connect` gives up on a machine that accepts a connection but sends nothing."""
    monkeypatch.setattr(engine_client, "CONNECT_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(TryAgain, match=r"does not answer \(nothing within 0.2 s\)"):
            engine_client.connect(tls_engine(address, pki["client"]))


@pytest.mark.parametrize("said", [b"<html>", {}, []])
def test_a_server_that_is_no_engine(tmp_path: Path, said: Any) -> None:
    """A server that answers differently from an engine is reported as such."""
    with on_socket(tmp_path / "s", {**ANSWERS, "/version": said}) as address:
        with pytest.raises(TryAgain, match="is not a container engine"):
            engine_client.connect(Engine(name="pi", address=address))


def test_an_api_that_is_too_old(tmp_path: Path) -> None:
    """An engine with an API that is too old is refused."""
    with on_socket(tmp_path / "s", {**ANSWERS, "/version": {"ApiVersion": "1.24"}}) as address:
        with pytest.raises(Refused, match=r"speaks version 1.24 of the API; from 1.40 on"):
            engine_client.connect(Engine(name="pi", address=address))


def test_an_engines_own_error_is_passed_on(tmp_path: Path) -> None:
    """An engine's own error message is passed on."""
    with on_socket(tmp_path / "s", {"/info": INFO}) as address:
        with pytest.raises(TryAgain, match=r"not as it should \(no such thing: /version\)"):
            engine_client.connect(Engine(name="pi", address=address))


def test_tls_ignores_the_environment(pki: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """REQUESTS_CA_BUNDLE and HTTPS_PROXY have no effect on engines."""
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(pki["stranger"] / "ca.pem"))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    with on_port(context(pki["server"])) as address:
        with closing(engine_client.connect(tls_engine(address, pki["client"]))) as client:
            assert engine_client.describe_engine(client).architecture == "aarch64"


def test_a_client_that_is_not_accepted(pki: dict[str, Path], tmp_path: Path) -> None:
    """An engine's rejection of the client certificate is passed on, with the file's path."""
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    for name, source in (("ca.pem", "client"), ("cert.pem", "stranger"), ("key.pem", "stranger")):
        (mixed / name).write_bytes((pki[source] / name).read_bytes())
    with on_port(context(pki["server"])) as address:
        with pytest.raises(Refused, match=rf"does not accept {mixed}/cert.pem \(.*unknown ca\)"):
            engine_client.connect(tls_engine(address, mixed))


def test_an_engine_that_is_not_trusted(pki: dict[str, Path]) -> None:
    """Server certificates of another CA or for another address are rejected."""
    with on_port(context(pki["server"])) as address:
        with pytest.raises(Refused, match=r"certificate is not accepted by .*stranger/ca.pem .*; is it the same CA"):
            engine_client.connect(tls_engine(address, pki["stranger"]))
    with on_port(context(pki["elsewhere"])) as address:
        with pytest.raises(Refused, match=r"not accepted by .*client/ca.pem \(IP address mismatch.*127.0.0.1"):
            engine_client.connect(tls_engine(address, pki["client"]))


def test_an_engine_without_tls(pki: dict[str, Path]) -> None:
    """An engine without TLS is rejected."""
    with on_port(None) as address:
        with pytest.raises(TryAgain, match="does not speak TLS.*--tlsverify"):
            engine_client.connect(tls_engine(address, pki["client"]))


@pytest.mark.parametrize("name", ["ca.pem", "cert.pem", "key.pem"])
def test_unusable_certificates(pki: dict[str, Path], tmp_path: Path, name: str) -> None:
    """A missing or malformed certificate file is named before any connection is made."""
    for each in ("ca.pem", "cert.pem", "key.pem"):
        (tmp_path / each).write_bytes((pki["client"] / each).read_bytes())
    wanted = tls_engine("tcp://192.0.2.1:2376", tmp_path)
    (tmp_path / name).write_text("nothing\n")
    with pytest.raises(Refused, match=f"{tmp_path}/{name}.*(no certificate|do not serve)"):
        engine_client.connect(wanted)
    (tmp_path / name).unlink()
    with pytest.raises(Refused, match=rf"{tmp_path}/{name} cannot be read \(No such file"):
        engine_client.connect(wanted)


def test_ssh_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error quotes the last line of ssh, which runs in batch mode."""
    arguments = fake_ssh(monkeypatch, tmp_path / "bin", "echo Warning >&2; echo 'ssh: no such host Pi' >&2; exit 255")
    with pytest.raises(TryAgain, match=r"engine pi \(ssh://me@Pi:2222\) cannot be.*says: ssh: no such host Pi; see"):
        engine_client.connect(Engine(name="pi", address="ssh://me@Pi:2222"))
    said = arguments.read_text().splitlines()[: len(ssh_command("ssh://me@Pi:2222")) - 1]
    assert "BatchMode=yes" in said
    assert said[-7:] == ["-l", "me", "-p", "2222", "--", "Pi", "docker system dial-stdio"]


def test_a_silent_ssh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`connect` gives up on an ssh that neither connects nor ends, and ends it."""
    monkeypatch.setattr(engine_client, "CONNECT_TIMEOUT_S", 0.2)
    fake_ssh(monkeypatch, tmp_path / "bin", "exec cat >/dev/null")
    with pytest.raises(TryAgain, match=r"says: nothing within 0.4 s"):
        engine_client.connect(Engine(name="pi", address="ssh://pi"))


def test_no_ssh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without ssh is refused."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Refused, match="has no ssh"):
        engine_client.connect(Engine(name="pi", address="ssh://pi"))


def test_describe_engine(tmp_path: Path) -> None:
    """Accelerators come from the engine's lists, or from its runtimes where it lists none."""
    listed = {
        "DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}],
        "GenericResources": [
            {"NamedResourceSpec": {"Kind": "gpu", "Value": "UUID-1"}},
            {"DiscreteResourceSpec": {"Kind": "ssd", "Value": 3}},
        ],
    }
    nvidia = {"Runtimes": {"runc": {}, "nvidia": {}}}
    known = []
    for number, more in enumerate(({}, nvidia, {**nvidia, **listed})):
        with on_socket(tmp_path / str(number), {**ANSWERS, "/v1.41/info": {**INFO, **more}}) as address:
            with closing(engine_client.connect(Engine(name="pi", address=address))) as client:
                known.append(engine_client.describe_engine(client))
    assert [each.accelerators for each in known] == [(), ("nvidia",), ("nvidia.com/gpu=0", "gpu=UUID-1")]
    assert known[1].runtimes == ("nvidia", "runc")
    assert known[1].summary == "20.10.24 on Debian (aarch64), 4 cores, 8.0 GB, nvidia; runtimes nvidia, runc"


def test_find_image(tmp_path: Path) -> None:
    """A label marks mounted images, and a missing image is refused with those that exist, ours first."""
    plain = {"Id": "sha256:1", "RepoTags": ["zoo:latest"], "Architecture": "arm64", "Config": {"Labels": None}}
    ours = {"Id": "sha256:2", "RepoTags": ["fleetune-mounted:latest"], "Config": {"Labels": {"fleetune.mounted": "1"}}}
    said = {
        **ANSWERS,
        "/v1.41/images/json": [plain, ours],
        "/v1.41/images/zoo/json": plain,
        "/v1.41/images/sha256:1/json": plain,
        "/v1.41/images/sha256:2/json": ours,
        "/v1.41/images/fleetune-mounted/json": ours,
    }
    with on_socket(tmp_path / "s", said) as address:
        with closing(engine_client.connect(Engine(name="pi", address=address))) as client:
            assert engine_client.find_image(client, "pi", "zoo") == engine_client.Image(
                id="sha256:1", mounted=False, architecture="arm64"
            )
            assert engine_client.find_image(client, "pi", "fleetune-mounted").mounted
            has = r"engine pi has no image fleetune-train; it has fleetune-mounted, zoo; run make images \(or docker"
            with pytest.raises(Refused, match=has):
                engine_client.find_image(client, "pi")
