"""Stages that conduct nobody, each in a container without a network."""

import threading
from collections.abc import Callable
from typing import Self

from fleetune.contracts.fleet import LOCAL
from fleetune.launching.docker.housing import Carried, Housing, Limits
from fleetune.launching.docker.tenancy import Tenancy
from fleetune.launching.job import Launcher

ALONE = "none"


class StageContainers:
    """Launchers by image, on the engine of this machine; it is asked when the first of them is needed."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._lock = threading.Lock()
        self._tenancy: Tenancy | None = None
        self._housings: dict[str, Housing] = {}

    def launcher(self, image: str) -> Launcher:
        """What starts stages in containers of this image."""
        with self._lock:
            if self._tenancy is None:
                self._tenancy = Tenancy((None,))
            if image not in self._housings:
                yard = self._tenancy.yard(LOCAL, None, image, self._note)
                self._housings[image] = Housing(yard, ALONE, Limits(), Carried(yard))
            return self._housings[image]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            if self._tenancy is not None:
                self._tenancy.close()
                self._tenancy = None
