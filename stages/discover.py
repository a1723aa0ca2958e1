"""discover: fleet request -> fleet."""

from fleetune import discovery
from fleetune.contracts import wire
from fleetune.contracts.config.fleet import FleetRequest
from fleetune.launching import ProcessLauncher
from stages.entry import Desk, main


def discover(desk: Desk) -> None:
    """Find and measure the devices and links that the config asks for."""
    request = wire.load(FleetRequest, desk.task.config["fleet"], "fleet")
    fleet = discovery.discover(request, ProcessLauncher(), desk.channel.progress, desk.channel.note)
    wire.write(fleet, desk.output("fleet") / "fleet.json")


if __name__ == "__main__":
    main(discover)
