"""`python -m flows.service.http_server PORT ROOT`: Prefect's server with its UI, and the store's pages beside it.

The keeper has reserved the port, so that no other user's program can answer in its place. The auth string arrives on
the first line of stdin, which no list of processes shows; an empty line means none.
"""

import os
import socket
import sys
from pathlib import Path

from flows.prefect_server import CLIENT_SECRET, HOST, SECRET
from flows.service_files import ServiceFiles, lasting_path, store_path

GRACE_S = 3
STATIC = "PREFECT_UI_STATIC_DIRECTORY"
"""Prefect's variable for the folder in which it keeps a copy of its UI."""


def main() -> None:
    """Serve until the process is terminated."""
    port, root = int(sys.argv[1]), sys.argv[2]
    auth_string = sys.stdin.readline().strip()
    if auth_string:
        os.environ[SECRET] = os.environ[CLIENT_SECRET] = auth_string
    with socket.create_server((HOST, port), backlog=2048, reuse_port=True) as listener:
        _serve(listener, root, auth_string)


def _serve(listener: socket.socket, root: str, auth_string: str) -> None:
    import uvicorn
    from prefect.server.api.server import create_app
    from starlette.routing import Mount

    import flows.service.failure_log  # noqa: F401  (the server finds the block by its class)
    from fleetune.store import Store
    from flows.service.form_style import put_form_in_columns
    from flows.service.locked_database import RetriesLockedWrites
    from flows.service.state_filter import NamesOfAllStates
    from flows.service.store_pages import store_pages

    app = create_app()
    put_form_in_columns(Path(os.environ[STATIC]))
    store = Store(root)
    paths = {store_path(auth_string), lasting_path(ServiceFiles(store.local))}
    for path in sorted(paths):  # before the UI's "/", and the longer one before the one that it begins with
        app.router.routes.insert(0, Mount(path, app=store_pages(store)))
    served = RetriesLockedWrites(NamesOfAllStates(app))
    config = uvicorn.Config(served, log_level="warning", lifespan="on", timeout_graceful_shutdown=GRACE_S)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
