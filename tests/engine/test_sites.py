"""Devices as containers: what they may do and see, how they end, and that nothing is ever left of them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fleetune.contracts.fleet import Engine
from fleetune.errors import Refused, TryAgain
from fleetune.launching.docker import cleanup
from fleetune.launching.docker.sites import DockerSites
from fleetune.launching.placement import DevicePlacement, FleetPlacement
from tests.support.engine.places import contained, grounds, ignored, python

LOOK = """
import json, os, pathlib
def may(path):
    try:
        pathlib.Path(path, 'probe').write_text('x')
        return True
    except OSError:
        return False
status = dict(line.split(':', 1) for line in open('/proc/self/status') if ':' in line)
print(json.dumps({'uid': os.getuid(), 'capabilities': int(status['CapEff'].strip(), 16),
    'new': int(status['NoNewPrivs']), 'root': may('/'), 'in': may('IN'), 'out': may('OUT'),
    'read': pathlib.Path('IN', 'given').read_text(), 'environment': dict(os.environ)}))
"""


def test_a_container_may_write_to_its_output_and_nowhere_else(tmp_path: Path) -> None:
    """Never root, without a capability, on a root that cannot be written to; it reads its inputs and writes outputs."""
    inputs, outputs = tmp_path / "in", tmp_path / "out"
    inputs.mkdir()
    inputs.chmod(0o755)
    (inputs / "given").write_text("bread")
    source = LOOK.replace("IN", str(inputs)).replace("OUT", str(outputs))
    with DockerSites(grounds(contained("nano")), ignored) as sites:
        job = sites.launcher("nano").start(python(source, tmp_path, reads=(inputs,), writes=(outputs,)))
        seen: dict[str, Any] = json.loads(next(job.lines()))
        assert job.wait(60) == 0
    assert seen["uid"] != 0 and seen["capabilities"] == 0 and seen["new"] == 1
    assert (seen["root"], seen["in"], seen["out"], seen["read"]) == (False, False, True, "bread")
    assert (outputs / "probe").read_text() == "x"
    assert seen["environment"]["OMP_NUM_THREADS"] == "1"


def test_a_secret_is_seen_by_its_container_only_on_stdin(tmp_path: Path, engine: Any) -> None:
    """The first line reaches the command, and nothing that the engine tells of the container holds it."""
    source = "import sys; print(sys.stdin.readline().strip()[::-1])"
    with DockerSites(grounds(contained("nano")), ignored) as sites:
        job = sites.launcher("nano").start(python(source, tmp_path, first_line=b"terces"))
        assert next(job.lines()) == "secret"
        told = [json.dumps(each.attrs) for each in engine.containers.list(all=True, ignore_removed=True)]
        assert told and not any("terces" in text for text in told)
        assert job.wait(60) == 0


def test_memory_that_runs_out_is_told_apart_from_a_kill(tmp_path: Path) -> None:
    """A container over its limit says so; one that somebody kills does not."""
    greedy, waiting = "held = b'x' * (1 << 28)", "import signal; print('up', flush=True); signal.pause()"
    with DockerSites(grounds(contained("nano", memory_bytes=64 << 20), contained("desk")), ignored) as sites:
        fat = sites.launcher("nano").start(python(greedy, tmp_path))
        assert fat.wait(60) == 137 and fat.out_of_memory
        killed = sites.launcher("desk").start(python(waiting, tmp_path))
        assert next(killed.lines()) == "up"
        os.kill(killed.pid, signal.SIGKILL)
        assert killed.wait(60) == 137 and not killed.out_of_memory


def test_memory_that_is_full_is_told_while_a_container_runs(tmp_path: Path) -> None:
    """What cannot be reclaimed counts, files in memory included; what was read from a disk does not."""
    waits = "import signal; print('up', flush=True); signal.pause()"
    fills = f"f = open('/tmp/much', 'wb'); [f.write(bytes(1 << 20)) for _ in range(60)]; f.flush(); {waits}"
    with DockerSites(grounds(*(contained(name, memory_bytes=80 << 20) for name in ("nano", "desk"))), ignored) as sites:
        full, free = (
            sites.launcher(name).start(python(code, tmp_path)) for name, code in (("nano", fills), ("desk", waits))
        )
        assert next(full.lines()) == next(free.lines()) == "up"
        shares = full.memory_share(), free.memory_share()
    assert 0.75 < shares[0] <= 1.0 and 0.0 < shares[1] < 0.3, shares


def test_a_quota_binds_from_hold_on(tmp_path: Path, engine: Any) -> None:
    """Starting up may take what is free; after hold() the container has its share of a core, in short periods."""
    source = "import signal; print('up', flush=True); signal.pause()"
    with DockerSites(grounds(contained("nano", cores=0.3)), ignored) as sites:
        job = sites.launcher("nano").start(python(source, tmp_path))
        next(job.lines())
        (one,) = [each for each in engine.containers.list(ignore_removed=True) if "timeit" in str(each.attrs["Args"])]
        assert one.attrs["HostConfig"]["CpuQuota"] == 0
        job.limit_cpu()
        one.reload()
        assert (one.attrs["HostConfig"]["CpuPeriod"], one.attrs["HostConfig"]["CpuQuota"]) == (10_000, 3_000)
        assert job.stop() in (143, 137)


def test_exit_code_output_and_log_come_through(tmp_path: Path) -> None:
    """Lines of stdout arrive whole and in order, stderr is the log, and the exit code is the command's own."""
    source = (
        "import os, sys; print('one'); print('two', flush=True);"
        "sys.stderr.write('why'); sys.stderr.flush(); os._exit(65)"
    )
    with DockerSites(grounds(contained("nano")), ignored) as sites:
        job = sites.launcher("nano").start(python(source, tmp_path))
        assert list(job.lines()) == ["one", "two"]
        assert job.wait(60) == 65 and job.tail() == "why"


def test_devices_reach_each_other_and_this_process_and_nobody_else(tmp_path: Path) -> None:
    """The network of a run joins its devices and the process that conducts them; it leads nowhere else."""
    import socket

    ask = (
        "import socket, sys; host, port = sys.stdin.readline().split(':');"
        "print(socket.create_connection((host, int(port)), 5).recv(9).decode())"
    )
    serve = (
        "import socket; door = socket.create_server(('0.0.0.0', 7700)); print('up', flush=True);"
        "line, _ = door.accept(); line.sendall(b'from ann'); line.close()"
    )
    away = (
        "import socket\ntry:\n  socket.create_connection(('192.0.2.1', 9), 5); print('out')\n"
        "except OSError as error: print(type(error).__name__, error.strerror)"
    )
    with DockerSites(grounds(contained("ann"), contained("bob")), ignored) as sites:
        host = sites.listen.removeprefix("tcp://").removesuffix(":*")
        ann = sites.launcher("ann").start(python(serve, tmp_path / "ann"))
        next(ann.lines())
        door = sites.listen_settings("ann").address.removeprefix("tcp://").encode()
        bob = sites.launcher("bob").start(python(ask, tmp_path / "bob", first_line=door))
        assert next(bob.lines()) == "from ann"
        assert bob.wait(60) == 0
        with socket.create_server((host, 0)) as here:
            asking = python(ask, tmp_path / "bob", first_line=f"{host}:{here.getsockname()[1]}".encode())
            bob = sites.launcher("bob").start(asking)
            here.settimeout(30)
            line, _ = here.accept()
            with line:
                line.sendall(b"from me")
            assert next(bob.lines()) == "from me"
        lost = sites.launcher("bob").start(python(away, tmp_path / "bob"))
        assert next(lost.lines()) != "out"


def test_nothing_is_left_when_the_process_is_killed(tmp_path: Path, engine: Any) -> None:
    """A reaper removes what a process made that was killed with everything it had open."""
    script = (
        "import signal, sys; from tests.support.engine.places import *\n"
        "from fleetune.launching.docker.sites import DockerSites\n"
        "with DockerSites(grounds(contained('nano')), ignored) as sites:\n"
        f"  job = sites.launcher('nano').start(python('import time; time.sleep(600)', Path({str(tmp_path)!r})))\n"
        "  print(sites._session.token, sites._session._reaper._process.pid, flush=True)\n"
        "  signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        token, reaper = process.stdout.readline().split()
        mine = {"label": f"{cleanup.RUN_LABEL}={token}"}
        assert len(engine.containers.list(filters=mine, ignore_removed=True)) == 2
        process.kill()
        process.wait()
        _until_gone(int(reaper))
    assert (
        engine.containers.list(all=True, filters=mine, ignore_removed=True) == []
        and engine.networks.list(filters=mine) == []
    )


def test_what_a_dead_owner_left_is_swept_away(engine: Any) -> None:
    """Where the reaper was killed too, the next process that uses the engine removes what its owner left."""
    gone = cleanup.owner_label(os.getpid()).rsplit("/", 1)[0] + "/1"  # this number, but an earlier process
    labels = {cleanup.RUN_LABEL: "old", cleanup.OWNER_LABEL: gone}
    orphan = engine.networks.create("fleetune-orphan", labels=labels)
    try:
        kept = engine.networks.create(
            "fleetune-kept", labels={**labels, cleanup.OWNER_LABEL: cleanup.owner_label(os.getpid())}
        )
        cleanup.remove_orphans(engine, own=True)
        assert engine.networks.list(names=["fleetune-orphan"]) == []
        assert [network.name for network in engine.networks.list(names=["fleetune-kept"])] == ["fleetune-kept"]
    finally:
        kept.remove()
        for network in engine.networks.list(names=[orphan.name]):
            network.remove()


@pytest.mark.parametrize(
    ("wrong", "kind", "says"),
    [
        (grounds(contained("nano"), image="fleetune-nowhere"), Refused, "has no image fleetune-nowhere"),
        (grounds(contained("nano", cores=4096.0)), Refused, "device nano: emulate.cores is 4096 but"),
        (grounds(contained("nano", memory_bytes=1 << 60)), Refused, "device nano: emulate.memory_bytes"),
        (
            FleetPlacement(
                devices=(DevicePlacement(device="nano", launcher="docker", engine="shed"),),
                engines=(Engine(name="shed", address="unix:///nowhere/docker.sock"),),
                image="fleetune-mounted",
            ),
            TryAgain,
            "engine shed does not answer",
        ),
    ],
)
def test_what_cannot_be_set_up_is_refused_and_leaves_nothing(wrong: FleetPlacement, kind: type, says: str) -> None:
    """One sentence; that nothing is left is proven after every test here."""
    with pytest.raises(kind, match=says), DockerSites(wrong, ignored):
        pass


def _until_gone(process: int) -> None:
    """Wait for a process that is not a child of this one."""
    import select

    handle = os.pidfd_open(process)
    try:
        assert select.select([handle], [], [], 60)[0]
    finally:
        os.close(handle)
