"""Joining: devices that no fleet file lists run `fleetune join` with the fleet's token while discovery listens.

The *host* (host_side.py) announces itself by mDNS and receives introductions over `fleetune.links`, with keys that
both sides derive from the token. A *device* (device_side.py) opens its engine to the holder of a client certificate,
which it sends only to authenticated hosts. mDNS is untrusted and provides addresses only. Rejected: passwords over TLS
(a false host would learn them), and one key per device (each would have to be copied to the host).

It needs zeroconf and cryptography, so nothing that runs in a device's container imports it.
"""

from fleetune.discovery.joining.host_side import collect_devices, joined_request
from fleetune.discovery.joining.introduction import JoinedDevice

__all__ = ["JoinedDevice", "joined_request", "collect_devices"]
