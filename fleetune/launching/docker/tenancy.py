"""What this process has on engines: connections, a label of its own on all it makes, and the certainty that it goes."""

import secrets
from collections.abc import Callable, Iterable

from fleetune.contracts.engine import Engine
from fleetune.errors import Refused
from fleetune.launching.docker import leftovers
from fleetune.launching.docker.engines import EngineFacts, connect, engine_facts, image_of, local
from fleetune.launching.docker.housing import Yard
from fleetune.launching.docker.reaper import Charge, Reaper


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
        engine = engine or local()
        client = connect(engine)
        try:
            leftovers.sweep(client)
            found = image_of(client, name, image)
            facts = engine_facts(client)
            if found.mounted and not engine.is_here:
                raise Refused(
                    f"engine {name}: image {image} uses files of this machine, which its containers cannot see; "
                    "use fleetune-train there (fleet.image)"
                )
        except BaseException:
            client.close()
            raise
        made = Yard(
            name=name,
            client=client,
            image_id=found.id,
            mounted=found.mounted,
            here=engine.is_here,
            gpus="nvidia" in facts.runtimes,
            labels=self.labels,
        )
        self._yards.append(made)
        self.facts[name] = facts
        note(f"engine {name}: {facts.words}")
        return made

    def close(self) -> None:
        """Remove all that was made; safe to repeat."""
        while self._yards:
            yard = self._yards.pop()
            leftovers.remove(yard.client, self.token)
            yard.client.close()
        self._reaper.dismiss()
