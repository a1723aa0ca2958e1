"""What this process has on engines: connections, a label of its own on all it makes, and the certainty that it goes."""

import secrets
from collections.abc import Callable, Iterable
from typing import Any

from containers import recipe
from fleetune.contracts.fleet import Engine
from fleetune.errors import Refused, TryAgain
from fleetune.launching.docker import leftovers
from fleetune.launching.docker.engines import EngineFacts, connect, engine_facts, image_of, local
from fleetune.launching.docker.housing import Yard
from fleetune.launching.docker.reaper import Charge, Reaper
from fleetune.launching.docker.trouble import SILENT, why


class Tenancy:
    """To be closed, whatever happens; a process that is killed has a reaper do it."""

    def __init__(self, engines: Iterable[Engine | None]) -> None:
        """None stands for the engine of this machine."""
        wanted = tuple(engines)
        self.token = secrets.token_hex(4)
        self.facts: dict[str, EngineFacts] = {}
        self.labels = leftovers.labels(self.token)
        self._yards: list[Yard] = []
        named = tuple(engine for engine in wanted if engine is not None)
        self._reaper = Reaper(Charge(token=self.token, engines=named, local=None in wanted))

    def yard(self, name: str, engine: Engine | None, image: str, note: Callable[[str], None]) -> Yard:
        """Connect to an engine that has the image; Refused or TryAgain where there is none."""
        engine = _this_machines() if engine is None else engine
        client = connect(engine)
        try:
            leftovers.sweep(client, own=engine.is_here)
            found = image_of(client, name, image)
            _prove_current(client, name, image)
            facts = engine_facts(client)
            if found.mounted and not engine.is_here:
                raise Refused(
                    f"engine {name}: image {image} uses files of this machine, which its containers cannot see; "
                    "use fleetune-train there (fleet.image)"
                )
        except BaseException as error:
            client.close()
            if isinstance(error, SILENT):
                raise TryAgain(f"engine {name} could not tell of itself and of image {image} ({why(error)})") from None
            raise
        made = Yard(
            name=name,
            client=client,
            image_id=found.id,
            mounted=found.mounted,
            here=engine.is_here,
            gpus="nvidia" in facts.runtimes,
            labels=self.labels if engine.is_here else {**self.labels, leftovers.ENGINE: engine.address},
        )
        self._yards.append(made)
        self.facts[name] = facts
        note(f"engine {name}: {facts.words}")
        return made

    def close(self) -> None:
        """Remove all that was made; safe to repeat."""
        while self._yards:
            yard = self._yards[-1]
            leftovers.remove(yard.client, self.token)
            yard.client.close()
            self._yards.pop()
        self._reaper.dismiss()


def _this_machines() -> Engine:
    """The engine that needs no entry; Refused where DOCKER_HOST names that of another machine."""
    engine = local()
    if not engine.is_here:
        raise Refused(
            f"DOCKER_HOST names {engine.address}, an engine of another machine: write it under fleet.engines and give "
            "devices its name, or unset DOCKER_HOST"
        )
    return engine


def _prove_current(client: Any, engine: str, image: str) -> None:
    """Refuse an image of ours that was built from other code than this: its results would pass for those of this."""
    target = {recipe.tag(target): target for target in recipe.TARGETS}.get(image)
    if target is None or not (recipe.PROJECT / "Dockerfile").is_file():
        return
    if client.images.get(image).labels.get(recipe.LABEL) != recipe.recipe(recipe.PROJECT, target):
        raise Refused(
            f"engine {engine}: image {image} is older than the code: run make images (and, for an engine elsewhere, "
            f"docker save {image} | docker load there)"
        )
