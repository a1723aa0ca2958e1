"""The sites of a fleet: containers where a device asks for them."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from fleetune.launching.quarters import Grounds
from fleetune.launching.sites import Here, Sites

if TYPE_CHECKING:
    from fleetune.launching.docker.stages import StageContainers


def open_sites(grounds: Grounds, note: Callable[[str], None]) -> Sites:
    """What runs commands at the devices; to be entered. `note` hears what engines say of themselves."""
    if not grounds.contained:
        return Here(limits=grounds.process_limits)
    from fleetune.launching.docker.sites import DockerSites  # the engine's client is slow to import

    return DockerSites(grounds, note)


def open_stages(note: Callable[[str], None]) -> "StageContainers":
    """What runs whole stages in containers; to be entered."""
    from fleetune.launching.docker.stages import StageContainers

    return StageContainers(note)
