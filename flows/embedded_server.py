"""`python -m flows.embedded_server`: the Prefect server of one run, until it is terminated.

It binds a loopback port itself and prints it, so that no other process can take it in between. The secret of its
clients arrives on the first line of stdin, which no list of processes shows; others are told nothing.
"""

import os
import socket
import sys

from flows.prefect_server import CLIENT_SECRET, HOST, SECRET


def main() -> None:
    """Serve until the process is terminated."""
    secret = sys.stdin.readline().strip()
    os.environ[SECRET] = os.environ[CLIENT_SECRET] = secret  # before Prefect reads its settings
    with socket.create_server((HOST, 0), backlog=2048) as listener:
        sys.stdout.write(f"{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        import uvicorn
        from prefect.server.api.server import create_app

        from flows.new_database import copy_new_databases
        from flows.service.bodies import BoundedBodies
        from flows.service.login import LoggedInOnly
        from flows.sqlite_cursors import close_failed_cursors

        close_failed_cursors()
        copy_new_databases()
        app = create_app()  # it tells strangers its calls, and reads their bodies before it asks for the secret
        closed = LoggedInOnly(BoundedBodies(app), app.routes, secret)
        uvicorn.Server(uvicorn.Config(closed, log_level="error", lifespan="on")).run(sockets=[listener])


if __name__ == "__main__":
    main()
