"""A device that has joined, and the folder that holds the papers for its engine."""

import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

from fleetune.contracts.fleet import Engine
from fleetune.contracts.record import record
from fleetune.discovery.joining import engine_facts
from fleetune.discovery.joining.certificates import Papers, client_context
from fleetune.discovery.joining.engine_facts import TIMEOUT_S, EngineFacts
from fleetune.discovery.joining.protocol import Introduction
from fleetune.errors import TryAgain


@record
class Joined:
    """One device, and the way to its engine."""

    name: str
    engine: Engine
    """Its `tls` is the folder with ca.pem, cert.pem and key.pem, which only the owner can read."""
    facts: EngineFacts


def reached(introduction: Introduction) -> EngineFacts:
    """What the engine itself says where the device says that it is; TryAgain when it cannot be reached so."""
    papers = Papers(ca=introduction.ca, cert=introduction.cert, key=introduction.key)
    place = urlsplit(introduction.address)
    try:
        context = client_context(papers)
    except (OSError, ValueError):  # errors of TLS are such
        raise TryAgain(f"device {introduction.name}: its certificates cannot be used; join again") from None
    try:
        plain = socket.create_connection((str(place.hostname), place.port), TIMEOUT_S)
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise TryAgain(f"the engine at {introduction.address} does not answer as one does ({why})") from None
    with context.wrap_socket(plain, server_hostname=str(place.hostname), do_handshake_on_connect=False) as line:
        return engine_facts.ask(line, introduction.address)


def kept(introduction: Introduction, facts: EngineFacts, folder: Path) -> Joined:
    """Write its papers to folder/NAME."""
    own = folder / introduction.name
    own.mkdir(mode=0o700, parents=True, exist_ok=True)
    own.chmod(0o700)
    for name, text in (("ca", introduction.ca), ("cert", introduction.cert), ("key", introduction.key)):
        path = own / f"{name}.pem"
        path.unlink(missing_ok=True)  # an old one may have other permissions
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    engine = Engine(name=introduction.name, address=introduction.address, tls=str(own.resolve()))
    return Joined(name=introduction.name, engine=engine, facts=facts)
