"""The files of a service in its store: `STORE/prefect/service/`.

`lock` is held by the keeper as long as it lives, so that a record of a dead service is never believed: the kernel
releases the lock even when the machine has lost its power.
"""

import base64
import hashlib
import hmac
import os
import secrets
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path

from fleetune.contracts import json_io
from fleetune.contracts.record import record
from fleetune.errors import Refused
from fleetune.filesystem import write_durably
from fleetune.linux import process_identity
from fleetune.store import Lock
from fleetune.store.lock import is_held
from flows.store_mark import check_made_here, is_made_here, mark_made_here

HOME, FOLDER, SUBMITTED = "prefect", "service", "submitted"
USER = "fleetune"
PAGES = "/store"
"""Path on the server under which the store's pages lie."""
KEY_CHARACTERS, OPEN = 32, "open"
"""Length of the key in addresses of the store's pages; what stands in its place while a service asks for no password.
"""
PRIVATE = 0o700


@record
class ServiceRecord:
    """A running service."""

    address: str
    """Address of the server, such as http://127.0.0.1:4200."""
    root: str
    """Absolute path or URL of the store."""
    keeper: int
    """Process id of the keeper."""
    started: str
    authenticated: bool
    """The server asks for the password in the file `secret`; False where the user has said that it shall not."""
    version: str
    identity: str = ""
    """Which process the keeper is, see process_identity; a record without it is not believed."""
    database: str = ""
    """Mark of the database's URL, see ServiceFiles.mark; empty for the SQLite file in the store."""

    @property
    def api(self) -> str:
        """Address of Prefect's API."""
        return f"{self.address}/api"


class ServiceFiles:
    """The service folder of one store."""

    def __init__(self, local: Path) -> None:
        """`local`: the store's folder on this machine."""
        self.home = local.resolve() / HOME
        self.folder = self.home / FOLDER

    @property
    def record(self) -> Path:
        """The record of the running service."""
        return self.folder / "service.json"

    def write(self, service: ServiceRecord) -> None:
        """Write the record of the running service."""
        write_durably(json_io.text(service).encode(), self.record)

    def lock(self) -> Lock:
        """The lock that the keeper holds."""
        return Lock(self.folder / "lock", lambda _: True)

    def running(self) -> ServiceRecord | None:
        """The record of the running service; None when none runs or when it is still starting.

        A killed service leaves its record, whose process id another program may have by now. Somebody else's store can
        bring one along with a lock that nobody may open: it names no process of this boot.
        """
        if not is_held(self.folder / "lock"):
            return None
        try:
            found = json_io.read(ServiceRecord, self.record)
        except Refused:
            return None
        return found if found.identity and found.identity == process_identity(found.keeper) else None

    def starting(self) -> bool:
        """True when a keeper holds the lock."""
        return is_held(self.folder / "lock")

    @property
    def secret_file(self) -> Path:
        """The file of the password, which only this user can read."""
        return self.folder / "secret"

    def secret(self) -> str:
        """The password of the server, made when there is none."""
        path = self.secret_file
        with suppress(FileNotFoundError):
            if found := path.read_text(encoding="ascii").strip():  # a lost power can leave it empty
                return found
        write_durably(secrets.token_urlsafe(18).encode(), path, mode=0o600)
        return path.read_text(encoding="ascii")

    def auth_string(self, service: ServiceRecord) -> str:
        """Prefect's auth string of a running service; empty when it asks for none."""
        return self.login() if service.authenticated else ""

    def login(self) -> str:
        """What people paste into the login of Prefect's UI, and its clients send: `USER:PASSWORD`."""
        return f"{USER}:{self.secret()}"

    def key(self) -> str:
        """The key in addresses of the store's pages: it follows from the login and `opened`, and from nothing else."""
        return hashlib.sha256(f"store:{self.login()}:{self.opened()}".encode()).hexdigest()[:KEY_CHARACTERS]

    def opened(self) -> str:
        """A mark of the last service without a password; empty for none. It is no secret."""
        with suppress(FileNotFoundError):
            return self._opened.read_text(encoding="ascii").strip()
        return ""

    def end_keys(self) -> None:
        """Make every key invalid that there was: a service without a password shows all earlier links to everybody."""
        write_durably(secrets.token_hex(8).encode(), self._opened)

    @property
    def _opened(self) -> Path:
        return self.folder / "opened"

    def pages_path(self, authenticated: bool) -> str:
        """Path of the store's pages on the server, for links; without a password it tells no key."""
        return f"{PAGES}/{self.key() if authenticated else OPEN}"

    def mark(self, url: str) -> str:
        """A mark by which a database's URL is known again and which tells nothing of its password; empty for none."""
        return hmac.new(self.secret().encode(), url.encode(), hashlib.sha256).hexdigest()[:32] if url else ""

    @property
    def going_down(self) -> Path:
        """A mark that `fleetune down` makes before it ends the service, by which runs know who ends them."""
        return self.folder / "going-down"

    @property
    def submitted(self) -> Path:
        """A mark that the server touches when somebody has submitted a flow run, by which the worker looks at once."""
        return self.folder / SUBMITTED

    def flow_run_lock(self, flow_run: str) -> Path:
        """The lock that the process of a flow run holds."""
        return self.folder / "flow-runs" / f"{flow_run}.lock"


def basic_authorization(login: str) -> str:
    """The header that says `USER:PASSWORD`, as Prefect's clients send it."""
    return f"Basic {base64.b64encode(login.encode()).decode()}"


def make_home(home: Path) -> None:
    """Make the folder of Prefect's files in a store, for this user alone: its database holds all that runs were given,
    and whoever can open the file of a lock can hold the lock. What others have made there stays without a mark.
    """
    home.parent.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
    home.mkdir(mode=PRIVATE, exist_ok=True)
    check_owner(home)
    if stat.S_IMODE(home.stat().st_mode) != PRIVATE:
        home.chmod(PRIVATE)
    if is_made_here(home):
        mark_made_here(home)


def claim_home(home: Path, adopt: bool) -> None:
    """Make that folder for a service, whose password and programs lie in it. Refused unless this user has made what is
    there, before anything is changed; `adopt`: it is taken over.
    """
    check_owner(home)
    if not adopt:
        check_made_here(home)
    make_home(home)
    mark_made_here(home)


def check_owner(home: Path) -> None:
    """Refuse Prefect's files in a store if somebody else has made or can replace them: the database names programs that
    are run. `home` may not exist; a store that its group may write has been shared on purpose.
    """
    store, own = home.parent, os.getuid()
    _check_owner(store, {own, 0})
    for folder in (home, home / FOLDER):
        _check_owner(folder, {own})
        for path in folder.iterdir() if folder.is_dir() else ():
            _check_owner(path, {own})
    if store.is_dir() and store.stat().st_uid == own and store.stat().st_mode & stat.S_IWOTH:
        take_away = "take that right away (chmod o-w), or give a --root on a disk that keeps rights"
        raise Refused(f"{store}: every user of this machine can write it; {take_away}")


def _check_owner(path: Path, owners: set[int]) -> None:
    with suppress(FileNotFoundError):  # there is none, or a link to nothing
        for found in (path.lstat(), path.stat()):
            if found.st_uid not in owners:
                can = f"it belongs to user {found.st_uid}, who could change what is run"
                raise Refused(f"{path}: {can}; run as that user (docker run --user), or give another --root")


def hold(local: Path, flow_run: str) -> Lock:
    """Take the lock of a flow run of the store whose local folder is `local`.

    It waits for another process of the same flow run, which Resume or Retry can follow before it has ended.
    """
    return Lock(ServiceFiles(local).flow_run_lock(flow_run), _sleep, _tell).__enter__()


def _tell(holder: str) -> None:
    sys.stderr.write(f"waits for {holder}\n")


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False
