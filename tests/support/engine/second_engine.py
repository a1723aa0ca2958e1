"""A second container engine on this machine, over TLS, as if it were another machine's. Fixture: `second`.

It listens on loopback only, with certificates of its own, and keeps all it has in one folder; the first engine's
bridge and firewall rules are left alone (a bridge of its own, since without one an engine removes docker0; no iptables;
forwarding stays as it is). So
- containers of one of its networks reach each other, and this machine at any of its addresses, but not beyond;
- their published ports are served by its userland proxy, on this machine's addresses;
- `Second.reach`, an address put on `lo` for as long as the fixture lasts, is the one address at which everything meets:
  what this process listens to there, and ports published there by either engine, is reached from this process and from
  containers of both engines. The certificate is good for it too.

Its ID is that of the first engine: both have it from a file of this machine. What differs is their DockerRootDir.

Needs root, and the first engine with an image that has Python. Several may run at once.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path

import docker
import pytest

from fleetune.contracts.fleet import Engine
from fleetune.errors import FleetuneError, TryAgain
from fleetune.launching.docker.engine_client import connect
from tests.support.engine.certificates import Authority
from tests.support.flows.service.client import ServiceClient

IMAGE = "fleetune-mounted"
PATIENCE_S = 60.0
STEP_S = 0.1
SLOTS = 16
LIFETIME_S = 3600
"""After this the kernel itself takes the address back, should this process be killed."""


@dataclass(frozen=True, kw_only=True)
class Second:
    """The running engine."""

    engine: Engine
    """With `reach`, and with TLS files that it accepts."""
    authority: Authority
    """Signs whatever else a test needs."""
    folder: Path
    """All that it keeps."""

    @property
    def reach(self) -> str:
        """Where everything on this machine meets."""
        return self.engine.host

    def client(self) -> docker.DockerClient:
        """A connection, to be closed."""
        return connect(self.engine)

    def load(self, image: str) -> None:
        """Copy an image of the first engine."""
        with ExitStack() as stack:
            first, own = (stack.enter_context(closing(each)) for each in (connect(None), self.client()))
            own.images.load(first.images.get(image).save(named=True))


@pytest.fixture(scope="session")
def second() -> Iterator[Second]:
    """The engine, with the image `fleetune-mounted`; ended, and all it kept removed, with the session."""
    if os.geteuid() != 0:
        pytest.fail("a second engine can only be started by root: run these tests as root, or without -m engine")
    with ExitStack() as stack:
        claimed = _claim(stack)
        folder = Path(tempfile.mkdtemp(prefix="fleetune-second-"))
        stack.callback(_clear, folder)
        engine, authority = _start(stack, folder, claimed)
        made = Second(engine=engine, authority=authority, folder=folder)
        made.load(IMAGE)
        yield made


@dataclass(frozen=True)
class _Range:
    """Addresses that no other second engine uses."""

    first: int

    @property
    def reach(self) -> str:
        return f"10.219.{self.first + 15}.254"

    @property
    def bridge(self) -> str:
        return f"fleetune-2-{self.first}"

    @property
    def bridge_address(self) -> str:
        return f"10.219.{self.first + 8}.1/26"

    @property
    def pool(self) -> str:
        return f"base=10.219.{self.first}.0/21,size=26"


def _claim(stack: ExitStack) -> _Range:
    """A range with its bridge; whoever gets to put its last address on `lo` has it."""
    for first in range(0, 16 * SLOTS, 16):
        made = _Range(first)
        lifetime = ["valid_lft", str(LIFETIME_S), "preferred_lft", str(LIFETIME_S)]
        if _ip("address", "add", f"{made.reach}/32", "dev", "lo", *lifetime):
            stack.callback(_ip, "address", "del", f"{made.reach}/32", "dev", "lo")
            _ip("link", "del", made.bridge)  # of a process that was killed
            stack.callback(_ip, "link", "del", made.bridge)
            for step in (
                ("link", "add", made.bridge, "type", "bridge"),
                ("address", "add", made.bridge_address, "dev", made.bridge),
                ("link", "set", made.bridge, "up"),
            ):
                assert _ip(*step), step
            return made
    pytest.fail(f"no addresses for a second engine: 10.219.15.254 to 10.219.{16 * SLOTS - 1}.254 are all on lo already")


def _ip(*words: str) -> bool:
    return subprocess.run(["ip", *words], capture_output=True, check=False).returncode == 0


def _start(stack: ExitStack, folder: Path, claimed: _Range) -> tuple[Engine, Authority]:
    authority = Authority()
    server = authority.issue(folder / "server", addresses=("127.0.0.1", claimed.reach))
    client = authority.issue(folder / "client")
    port = ServiceClient.free_port()
    log, settings = folder / "log", folder / "settings.json"
    settings.write_text("{}")  # instead of those of this machine's own engine
    command = [
        *("setpriv", "--pdeathsig", "TERM", "dockerd", "--config-file", str(settings)),
        *("--data-root", str(folder / "data"), "--exec-root", str(folder / "exec"), "--pidfile", str(folder / "pid")),
        *("--host", f"tcp://127.0.0.1:{port}", "--tlsverify", "--tlscacert", str(server / "ca.pem")),
        *("--tlscert", str(server / "cert.pem"), "--tlskey", str(server / "key.pem")),
        *("--bridge", claimed.bridge, "--iptables=false", "--ip-masq=false", "--ip-forward=false"),
        *("--default-address-pool", claimed.pool),
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    stack.callback(_end, process)
    engine = Engine(name="second", address=f"tcp://127.0.0.1:{port}", tls=str(client), reach=claimed.reach)
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            connect(engine).close()
            stack.callback(_empty, engine)
            return engine, authority
        except TryAgain as silence:
            if process.poll() is not None or time.monotonic() > until:
                pytest.fail(f"the second engine gives no answer ({silence}); it said:\n{log.read_text()[-3000:]}")
        time.sleep(STEP_S)


def _empty(engine: Engine) -> None:
    """Bridges of networks would outlast it."""
    with suppress(FleetuneError), closing(connect(engine)) as client:
        for container in client.containers.list(all=True):
            container.remove(force=True, v=True)
        client.networks.prune()


def _end(process: subprocess.Popen[bytes]) -> None:
    """It ends its containers first, and its containerd after."""
    process.terminate()
    try:
        process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _clear(folder: Path) -> None:
    """Whatever still runs of it, is mounted in it, or lies in it."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if str(folder).encode() in path.read_bytes():
                os.kill(int(path.parent.name), signal.SIGKILL)
    mounted = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for place in sorted((each for each in mounted if each.startswith(str(folder))), reverse=True):
        subprocess.run(["umount", "--lazy", place], check=False)
    shutil.rmtree(folder)
