"""A fleet request with the devices that joined."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fleetune.contracts.fleet import DOCKER, LOCAL
from fleetune.contracts.fleet_request import DeviceRequest, FleetRequest
from fleetune.discovery.joining.host import listen_for
from fleetune.discovery.joining.joined import Joined
from fleetune.discovery.joining.surroundings import Surroundings
from fleetune.errors import Refused, TryAgain


def joined_request(
    request: FleetRequest, folder: Path, note: Callable[[str], None], surroundings: Surroundings | None = None
) -> FleetRequest:
    """The request with every device that joined, and its engine; the request itself where it asks for none.

    A device of the file keeps what the file says of it and gets the engine that joined under its name. Refused when
    the file has a device or an engine of that name which is another machine; TryAgain when the fleet would have no
    device at all.
    """
    if request.join is None:
        return request
    if request.simulated:
        raise Refused("fleet: its devices are simulated, so none can join them; leave out join")
    return with_joined(request, listen_for(request.join, folder, note, surroundings))


def with_joined(request: FleetRequest, joined: tuple[Joined, ...]) -> FleetRequest:
    """See joined_request."""
    new = {device.name: device for device in joined}
    for engine in request.engines:
        if engine.name in new:
            raise Refused(
                f"engine {engine.name}: it is in the fleet file, and a device has joined by that name, from "
                f"{new[engine.name].engine.address}; rename one of them: fleetune join --name NAME"
            )
    devices = [_filled(device) if device.name in new else device for device in request.devices]
    listed = {device.name for device in devices}
    devices += [DeviceRequest(name=name, launcher=DOCKER, engine=name) for name in new if name not in listed]
    if not devices:
        wait_s = request.join.wait_s if request.join else 0.0
        raise TryAgain(
            f"fleet: it names no device, and none has joined within {wait_s:g} s; "
            "run fleetune join with the same token on every device, then try again"
        )
    return replace(request, devices=tuple(devices), engines=(*request.engines, *(each.engine for each in joined)))


def _filled(device: DeviceRequest) -> DeviceRequest:
    """A device of the file whose engine has joined."""
    if device.launcher != DOCKER or device.engine != LOCAL:
        where = f"engine {device.engine}" if device.launcher == DOCKER else "processes of this machine"
        raise Refused(
            f"device {device.name}: it is in the fleet file, with {where}, and another device has joined by that name; "
            f"rename one of them, or write launcher: docker and no engine for the one that joins"
        )
    return replace(device, engine=device.name)
