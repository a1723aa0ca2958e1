"""discover: fleet request -> fleet, and the measurement that it is made of."""

from pathlib import Path

from fleetune.contracts import json_io
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.fleet_request import FleetRequest
from fleetune.discovery.discover import discover as discover_fleet
from fleetune.launching import open_sites
from fleetune.launching.placement import FleetPlacement
from stages.entry_point import StageContext, main


def discover(context: StageContext) -> None:
    """Find and measure the devices and links that the config asks for."""
    request = json_io.load(FleetRequest, context.task.config["fleet"], "fleet")
    if request.join is not None:
        from fleetune.discovery.joining import joined_request  # nobody else needs what it imports

        request = joined_request(
            request, Path(context.task.cache or context.task.work) / "joined", context.channel.note
        )
    earlier = context.task.stored.get("fleet")
    stored = json_io.read(Fleet, Path(earlier) / "fleet.json") if earlier else None
    with open_sites(FleetPlacement.from_request(request), context.channel.note) as sites:
        measured = discover_fleet(request, sites, context.channel.progress, context.channel.note, stored=stored)
    json_io.write(measured.fleet, context.output("fleet") / "fleet.json")
    json_io.write(measured, context.output("measurement") / "measurement.json")


if __name__ == "__main__":
    main(discover)
