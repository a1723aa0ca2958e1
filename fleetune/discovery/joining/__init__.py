"""Devices that are in no file: those that run `fleetune join` with the fleet's token while discovery listens.

The *host* listens (host.py), announces itself by mDNS and hears introductions over `fleetune.links`, with keys that
both sides derive from the token; a *device* (device.py) opens its engine to whoever holds the certificate that it
hands to hosts it could prove the token to. mDNS tells only where a host is: nothing it says is trusted. Set aside:
passwords over TLS (a false host would learn them), and one key per device (each would have to be brought to the host).

May import errors, contracts, links, containers and the engine's client of launching; needs zeroconf and cryptography,
so nothing that runs in a device's container imports it.
"""

from fleetune.discovery.joining.host import listen_for
from fleetune.discovery.joining.joined import Joined
from fleetune.discovery.joining.request import joined_request

__all__ = ["Joined", "joined_request", "listen_for"]
