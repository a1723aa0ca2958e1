"""An engine that joins, asked from the host's side."""

import time
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.tls import TLSConfig

from containers import engine_api
from fleetune.discovery.joining.device_side import ADMISSION_TIMEOUT_S
from fleetune.launching.docker import cleanup
from fleetune.launching.docker.engine_client import connect, find_image
from tests.support.discovery.joining.both_sides import Devices, host, token_file
from tests.support.engine.places import IMAGE


def test_the_engine_of_this_machine_joins(engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the papers that were handed out, a docker client finds the same engine through the front."""
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):  # would be asked instead of ours
        monkeypatch.delenv(name, raising=False)
    token = token_file(tmp_path)
    devices = Devices(engine_api.find_engine().socket, token)
    try:
        with host(token, tmp_path / "kept") as listening:
            devices.start(host_port=listening.port)
            listening.said.wait("device nano-1 has joined")
            (joined,) = listening.end()
        folder = joined.engine.tls
        own = (f"{folder}/cert.pem", f"{folder}/key.pem")
        papers = TLSConfig(client_cert=own, ca_cert=f"{folder}/ca.pem", verify=True)
        there = docker.DockerClient(base_url=joined.engine.address, version="auto", tls=papers)
        here = engine.info()
        try:
            assert there.info()["ID"] == here["ID"]
        finally:
            there.close()
    finally:
        devices.end()
    facts = joined.facts
    assert (facts.version, facts.cores, facts.memory_bytes) == (here["ServerVersion"], here["NCPU"], here["MemTotal"])


def test_a_device_with_a_bad_token_gets_nothing_of_this_engine(tmp_path: Path) -> None:
    """It is refused on both sides and written down; no container or network is there for it."""
    token, other = token_file(tmp_path), token_file(tmp_path, "another horse, another battery")
    devices = Devices(engine_api.find_engine().socket, token)
    try:
        with host(token, tmp_path / "kept") as listening:
            stranger = devices.start(
                name="eve",
                token=other,
                host_port=listening.port,
                clock=lambda: time.monotonic() * 2 * ADMISSION_TIMEOUT_S,
            )
            listening.said.wait("may not join: turned away: its token is another")
            stranger.wait("does not admit this device: is its token another?")
            assert listening.end() == ()
    finally:
        devices.end()
    assert "turned away" in (tmp_path / "kept" / "refused.log").read_text()


def test_a_device_that_leaves_during_a_run_keeps_nothing_of_it(engine: Any, tmp_path: Path) -> None:
    """Ctrl-C of a device once left the run's containers, networks and volumes on it: its host could not reach them any
    more. What others have on that engine stays."""
    token = token_file(tmp_path)
    devices = Devices(engine_api.find_engine().socket, token)
    try:
        with host(token, tmp_path / "kept") as listening:
            devices.start(host_port=listening.port)
            listening.said.wait("device nano-1 has joined")
            (joined,) = listening.end()
        labels = {cleanup.RUN_LABEL: "guest", cleanup.ENGINE_LABEL: joined.engine.address}
        other = engine.networks.create("fleetune-other", labels={"fleetune.test": "1"})
        client = connect(joined.engine)
        try:
            image = find_image(client, "nano-1", IMAGE).id
            network = client.networks.create("fleetune-guest", labels=labels)
            volume = client.volumes.create(labels=labels)
            container = client.containers.run(
                image, ["-c", "import signal; signal.pause()"], detach=True, labels=labels, network=network.id
            )
            assert container.id in [each.id for each in engine.containers.list(ignore_removed=True)]
        finally:
            client.close()
        devices.end()
        mine = {"label": f"{cleanup.RUN_LABEL}=guest"}
        assert (
            engine.containers.list(all=True, filters=mine, ignore_removed=True) == []
            and engine.networks.list(filters=mine) == []
        )
        assert volume.name not in [each.name for each in engine.volumes.list()]
        assert [each.name for each in engine.networks.list(names=[other.name])] == [other.name]
    finally:
        devices.end()
        for network in engine.networks.list(names=["fleetune-other"]):
            network.remove()
