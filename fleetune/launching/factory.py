"""Opens the places where commands run: processes of this machine, or containers of engines.

The modules of `fleetune.launching.docker` are imported when the first container is asked for: they and the Docker
library take 0.2 s, which a run of processes alone does not spend.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from fleetune.launching.placement import FleetPlacement, LocalSites, Sites

if TYPE_CHECKING:
    from fleetune.launching.docker.sites import StageLaunchers


def open_sites(placement: FleetPlacement, note: Callable[[str], None]) -> Sites:
    """Sites of a fleet, to be entered; `note` receives what engines report of themselves."""
    if not placement.in_containers:
        return LocalSites(memory_bytes=placement.process_memory_bytes)
    from fleetune.launching.docker.sites import DockerSites

    return DockerSites(placement, note)


def open_stage_launchers(note: Callable[[str], None]) -> "StageLaunchers":
    """Launchers of whole stages in containers, to be entered; `note` receives what the engine reports of itself."""
    from fleetune.launching.docker.sites import StageLaunchers

    return StageLaunchers(note)


def stage_image_id(image: str) -> str:
    """Id of an image on the engine that stages run on: it changes with what the image holds, and not with its name."""
    from fleetune.launching.docker.engine_client import image_id

    return image_id(image)
