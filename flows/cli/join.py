"""`fleetune join`: offers this machine's container engine as a device to fleets that ask for it."""

from __future__ import annotations

import os
import platform
import re
import signal
import socket
import threading
from pathlib import Path
from typing import Annotated

import typer

from fleetune.contracts.record import record
from fleetune.errors import Refused
from fleetune.filesystem import expanded
from flows.cli.options import with_options


@record
class NetworkOptions:
    """Addresses of the device and of the host."""

    engine: Annotated[
        str | None, typer.Option(metavar="unix:///PATH", help="Engine to join with; by default as docker finds it.")
    ] = None
    listen: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Own address to listen at; by default all but loopback.")
    ] = None
    port: Annotated[int | None, typer.Option(metavar="N", help="Own port to listen at; by default a free one.")] = None
    host: Annotated[
        str | None, typer.Option(metavar="ADDRESS[:PORT]", help="Address of the host; by default it is found by mDNS.")
    ] = None


@with_options(NetworkOptions)
def join(
    network: NetworkOptions,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", metavar="FILE", help="Token, the same as in the fleet file.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the device; by default the machine's name.")
    ] = None,
    new_token: Annotated[
        Path | None, typer.Option("--new-token", metavar="FILE", help="Write a new token and exit.")
    ] = None,
) -> None:
    """Let fleets with the same token use this machine's container engine, until Ctrl-C."""
    if (token_file is None) == (new_token is None):
        raise Refused("join: give --token-file FILE to join, or --new-token FILE to write a token; one of the two")
    if new_token is not None:
        return _write(new_token)
    assert token_file is not None
    from fleetune.discovery.joining.device_side import JoinOptions, find_local_engine, serve
    from fleetune.discovery.joining.network import DEFAULT_HOST_PORT, LocalNetwork, own_addresses

    addresses = own_addresses() if network.listen is None else (_address(f"--listen {network.listen}", network.listen),)
    surroundings = LocalNetwork(addresses=addresses, port=_port("--port", network.port))
    joining = JoinOptions(
        name=name or platform.node().partition(".")[0],
        token_file=expanded(token_file),
        engine=find_local_engine(network.engine, os.environ).socket,
        host=_host(network.host, DEFAULT_HOST_PORT) if network.host is not None else None,
    )
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    serve(joining, typer.echo, ended, surroundings)


def _write(path: Path) -> None:
    from fleetune.discovery.joining.credentials import new_token

    new_token(expanded(path))
    typer.echo(f"{path} holds a fresh token; bring it to every device, then there: fleetune join --token-file {path}")
    typer.echo(f"the fleet's file asks for them by join: {{token_file: {path}}}")


def _host(text: str, usual_port: int) -> tuple[str, int]:
    """Parse ADDRESS or ADDRESS:PORT."""
    address, _, port = text.partition(":")
    owner = f"--host {text}"
    if port and not re.fullmatch("[0-9]{1,5}", port):
        raise Refused(f"{owner}: the port is no number; write ADDRESS:PORT")
    return _address(owner, address), (_port(owner, int(port)) if port else None) or usual_port


def _address(owner: str, name: str) -> str:
    """The IPv4 address that `name` states or resolves to; Refused when there is none."""
    try:
        found = str(socket.getaddrinfo(name, None, socket.AF_INET)[0][4][0]) if name else "0.0.0.0"
    except (OSError, UnicodeError):
        raise Refused(f"{owner}: no machine is found by {name!r}; give an IPv4 address or a name of one") from None
    if found == "0.0.0.0":
        raise Refused(f"{owner}: give the address of one machine, such as 192.168.0.7")
    return found


def _port(owner: str, port: int | None) -> int | None:
    if port is not None and not 0 < port < 1 << 16:
        raise Refused(f"{owner}: a port is a number from 1 to 65535 (got {port})")
    return port
