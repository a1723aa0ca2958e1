"""discover: fleet request -> fleet."""

from pathlib import Path

from fleetune import discovery
from fleetune.contracts import wire
from fleetune.contracts.config.fleet import FleetRequest
from fleetune.contracts.fleet import Fleet
from fleetune.launching import open_sites
from fleetune.launching.quarters import asked
from stages.entry import Desk, main


def discover(desk: Desk) -> None:
    """Find and measure the devices and links that the config asks for."""
    request = wire.load(FleetRequest, desk.task.config["fleet"], "fleet")
    if request.join is not None:
        from fleetune.discovery.joining import joined_request  # nobody else needs what it imports

        request = joined_request(request, Path(desk.task.cache or desk.task.work) / "joined", desk.channel.note)
    earlier = desk.task.stored.get("fleet")
    stored = wire.read(Fleet, Path(earlier) / "fleet.json") if earlier else None
    with open_sites(asked(request), desk.channel.note) as sites:
        fleet = discovery.discover(request, sites, desk.channel.progress, desk.channel.note, stored=stored)
    wire.write(fleet, desk.output("fleet") / "fleet.json")


if __name__ == "__main__":
    main(discover)
