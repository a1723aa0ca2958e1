"""`python -m flows.prefect_server`: Prefect's server in a process of its own, on a port of loopback that it says.

It binds the port itself and tells its parent through the pipe, so nobody else can have taken a port that was only found
to be free. What clients must know comes on the first line of stdin, where no list of processes shows it.
"""

import os
import socket
import sys

HOST = "127.0.0.1"
SECRET = "PREFECT_SERVER_API_AUTH_STRING"
CLIENT_SECRET = "PREFECT_API_AUTH_STRING"


def main() -> None:
    """Serve until it is told to end."""
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
