"""A Postgres server of a test's own, on loopback."""

import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

from fleetune.contracts.record import record
from tests.support.flows.service.client import ServiceClient

USER, LIMIT_S, ASK_S = "fleet", 60.0, 0.05
CHEAP = ("fsync=off", "shared_buffers=16MB", "unix_socket_directories=", "listen_addresses=127.0.0.1")


def programs() -> Path | None:
    """The folder of Postgres's programs, which Debian keeps off the path; None where there are none."""
    folders = [Path(found).resolve().parent] if (found := shutil.which("initdb")) else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return next((folder for folder in reversed(folders) if (folder / "initdb").exists()), None)


@record
class Account:
    """The user that runs Postgres, which refuses to run as root."""

    uid: int
    gid: int

    @classmethod
    def usual(cls) -> "Account":
        """The user of this process, or `nobody` in place of root."""
        if os.getuid():
            return cls(uid=os.getuid(), gid=os.getgid())
        nobody = pwd.getpwnam("nobody")
        return cls(uid=nobody.pw_uid, gid=nobody.pw_gid)


class Cluster:
    """A context: the server runs inside of it."""

    def __init__(self, folder: Path) -> None:
        """`folder`: of Postgres's programs."""
        self._programs, self._account = folder, Account.usual()
        self._home = Path(tempfile.mkdtemp(prefix="fleetune-postgres-"))
        self.port, self.password = ServiceClient.free_port(), secrets.token_urlsafe(12)
        self._server: subprocess.Popen[bytes] | None = None

    def url(self, database: str = "prefect", user: str = USER, password: str = "", port: int = 0) -> str:
        """SQLAlchemy URL of a database."""
        return f"postgresql+asyncpg://{user}:{password or self.password}@127.0.0.1:{port or self.port}/{database}"

    def __enter__(self) -> Self:
        os.chown(self._home, self._account.uid, self._account.gid)
        word = self._home / "password"
        word.write_text(self.password)
        self._run("initdb", "-D", "data", "-A", "scram-sha-256", "-U", USER, f"--pwfile={word}", "--no-sync")
        self.start()
        self.ask("CREATE DATABASE prefect")
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self._home)

    def start(self) -> None:
        """Start the server and wait until it answers; again while its processes of before still end."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            if self._server is None or self._server.poll() is not None:
                settings = [word for setting in CHEAP for word in ("-c", setting)]
                self._server = subprocess.Popen(
                    [str(self._programs / "postgres"), "-D", "data", "-p", str(self.port), *settings],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd=self._home,
                    user=self._account.uid,
                    group=self._account.gid,
                    extra_groups=[],
                )
            try:
                self.ask("SELECT 1")
            except subprocess.CalledProcessError:
                time.sleep(ASK_S)
            else:
                return
        raise AssertionError("Postgres did not start")

    def kill(self) -> None:
        """End the server as a lost power does."""
        if self._server is not None:
            self._server.kill()
            self._server.wait()

    def ask(self, *statements: str) -> None:
        """Run SQL in the database of administrators."""
        words = [word for statement in statements for word in ("-c", statement)]
        self._run("psql", "-h", "127.0.0.1", "-p", str(self.port), "-U", USER, "-d", "postgres", "-q", *words)

    def _run(self, program: str, *words: str) -> None:
        subprocess.run(
            [str(self._programs / program), *words],
            cwd=self._home,
            user=self._account.uid,
            group=self._account.gid,
            extra_groups=[],
            env={**os.environ, "PGPASSWORD": self.password},
            capture_output=True,
            timeout=LIMIT_S,
            check=True,
        )
