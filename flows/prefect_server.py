"""`python -m flows.prefect_server`: Prefect's server in its own process, on a loopback port that it prints.

The process binds the port itself and writes it to stdout, so that no other process can take it in between. The secret
of its clients arrives on the first line of stdin, which no list of processes shows.
"""

import os
import socket
import sys

HOST = "127.0.0.1"
SECRET = "PREFECT_SERVER_API_AUTH_STRING"
CLIENT_SECRET = "PREFECT_API_AUTH_STRING"


def main() -> None:
    """Serve until the process is terminated."""
    os.environ[SECRET] = os.environ[CLIENT_SECRET] = sys.stdin.readline().strip()  # before Prefect reads its settings
    with socket.create_server((HOST, 0), backlog=2048) as listener:
        sys.stdout.write(f"{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        import uvicorn
        from prefect.server.api.server import create_app

        config = uvicorn.Config(create_app, factory=True, log_level="error", lifespan="on")
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
