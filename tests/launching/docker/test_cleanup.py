"""Removal of orphans from an engine, and of nothing that may have a living owner."""

import dataclasses
import os
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from fleetune.contracts import fleet as contracts_engine
from fleetune.errors import TryAgain
from fleetune.launching.docker import cleanup
from fleetune.launching.docker.cleanup import UNKNOWN, MachineIdentity
from fleetune.launching.docker.session import Session
from tests.support.launching.docker import fake_engine

BOOTED_S = 1_800_000_000.0
HERE = dataclasses.replace(cleanup.this_machine(), id="copied", booted_s=BOOTED_S)
EARLIER, LATER = BOOTED_S - 60, BOOTED_S + 60
DEAD = (1 << 22) + 1
"""An id above those that the kernel assigns, so that no process has it."""


class Thing:
    """A container, network or volume."""

    def __init__(self, attrs: dict[str, Any]) -> None:
        self.attrs = attrs
        self.removed = False

    def remove(self, **_: object) -> None:
        """As in the docker library."""
        self.removed = True


class Engine:
    """A fake engine with the given containers, networks and volumes."""

    def __init__(self, *things: Thing, networks: tuple[Thing, ...] = (), volumes: tuple[Thing, ...] = ()) -> None:
        self.containers, self.networks, self.volumes = (Listing(each) for each in (things, networks, volumes))

        self.images = SimpleNamespace(get=lambda name: SimpleNamespace(attrs={"Id": f"id of {name}"}))

    def info(self) -> dict[str, Any]:
        """As in the docker library."""
        return fake_engine.INFO

    def close(self) -> None:
        """As in the docker library."""


class Listing:
    """The containers, networks or volumes of a fake engine."""

    def __init__(self, things: tuple[Thing, ...]) -> None:
        self.things, self.silent = things, False

    def list(self, **_: object) -> list[Thing]:
        """As in the docker library."""
        if self.silent:
            raise ConnectionError("the engine does not answer")
        return [thing for thing in self.things if not thing.removed]


def container(owner: str, made_s: float, status: str = "exited", token: str = "t") -> Thing:
    made = datetime.fromtimestamp(made_s, UTC).isoformat(timespec="microseconds").replace("+00:00", "789Z")
    labels = {cleanup.RUN_LABEL: token, cleanup.OWNER_LABEL: owner}
    return Thing({"Config": {"Labels": labels}, "Created": made, "State": {"Status": status}})


def network(owner: str, made_s: float, token: str = "t") -> Thing:
    made = datetime.fromtimestamp(made_s, UTC).isoformat()
    return Thing({"Labels": {cleanup.RUN_LABEL: token, cleanup.OWNER_LABEL: owner}, "Created": made})


def owner(machine: MachineIdentity = HERE, process: int = DEAD, **changes: str) -> str:
    seen = dataclasses.replace(machine, **changes)  # type: ignore[arg-type]
    return f"{seen.id}:{seen.boot}:{seen.namespace}/{process}/1"


@pytest.mark.parametrize("own", [True, False])
def test_things_of_a_copied_machine_stay(own: bool) -> None:
    """Things that another boot made after this boot stay: copies of a machine share its machine-id.

    Bug: they counted as orphans, and one host removed the running containers of another.
    """
    theirs = [container(owner(boot="b2"), LATER, status, token=status) for status in ("running", "created", "exited")]
    sweep(Engine(*theirs, networks=(network(owner(boot="b2"), LATER),)), own=own)
    assert not any(thing.removed for thing in theirs)


def test_things_older_than_the_boot_are_removed_from_the_own_engine() -> None:
    """On this machine's own engine no owner from before the boot can live; on other engines their things stay."""
    left = owner(boot="b1")
    things = (container(left, EARLIER), container(left, EARLIER, "created"))
    more = (network(left, EARLIER),)
    sweep(Engine(*things, networks=more, volumes=more), own=False)
    assert not any(thing.removed for thing in (*things, *more))
    sweep(Engine(*things, networks=more, volumes=more), own=True)
    assert all(thing.removed for thing in (*things, *more))


def test_a_session_with_a_running_container_stays() -> None:
    """A session with a running container belongs to a living machine, however old it looks."""
    theirs = owner(boot="b1")
    things = (container(theirs, EARLIER, "running"), container(theirs, EARLIER), network(theirs, EARLIER))
    sweep(Engine(*things[:2], networks=things[2:]), own=True)
    assert not any(thing.removed for thing in things)


@pytest.mark.parametrize(
    "unknown",
    [
        container(owner(id=UNKNOWN, boot="b1"), EARLIER),
        container(owner(id="another", boot="b1"), EARLIER),
        container("somebody", EARLIER),
        container(owner(namespace="pid:[1]"), EARLIER),
        Thing({"Labels": {cleanup.OWNER_LABEL: owner(boot="b1")}, "State": {"Status": "exited"}}),
        Thing(
            {"Labels": {cleanup.OWNER_LABEL: owner(boot="b1")}, "Created": "2020-01-01", "State": {"Status": "exited"}}
        ),
        container(owner(boot="b1"), EARLIER, "paused"),
    ],
)
def test_things_of_unknown_owners_stay(unknown: Thing) -> None:
    """Things without a machine-id, of another machine, namespace or time, or in an unknown state stay."""
    for here in (HERE, dataclasses.replace(HERE, id=UNKNOWN)):
        sweep(Engine(unknown), own=True, machine=here)
    assert not unknown.removed


def test_within_one_boot_the_owners_process_decides() -> None:
    """Within one boot the owner's process decides, with or without a machine-id, wherever the engine runs."""
    gone, alive = container(owner(), LATER), container(cleanup.owner_label(os.getpid()), LATER)
    sweep(Engine(gone, alive), own=False, machine=dataclasses.replace(HERE, id=UNKNOWN))
    assert gone.removed and not alive.removed


def test_a_container_that_was_being_created_is_removed() -> None:
    """The engine completes a creation whose client was killed: the reaper looks again, and leaves nothing."""
    late, engine = container(owner(), LATER, "created"), Engine()

    def pause(_: float) -> None:
        engine.containers = Listing((late,))

    cleanup.remove_session(engine, "t", pause)
    assert late.removed


def test_what_an_engine_does_not_let_go_is_asked_for_again() -> None:
    """Bug: an engine that did not answer at the end of a run counted as one without containers, and kept them. Nothing
    is gone before the engine says so; until then it is asked again, and so are engines that cannot be reached."""
    left, pauses = container(owner(), LATER), list[float]()
    engine = Engine(left)
    engine.volumes.silent = True
    assert not cleanup.remove(engine, "t") and left.removed
    engine.volumes.silent = False
    assert cleanup.remove(engine, "t")
    tries: list[Any] = []

    def connect(asked: Any) -> Engine:
        tries.append(asked)
        if len(tries) < 3:
            raise TryAgain("unreachable")
        return engine

    cleanup.remove_patiently([None], "t", pauses.append, connect)
    assert len(tries) == 3 and pauses == [cleanup.REAPER_RETRY_S] * 2 + [cleanup.CREATION_S]
    engine.containers.silent = True
    pauses.clear()
    cleanup.remove_patiently([None], "t", pauses.append, connect)
    assert sum(p for p in pauses if p == cleanup.REAPER_RETRY_S) == cleanup.REAPER_PATIENCE_S


def sweep(engine: Engine, *, own: bool, machine: MachineIdentity = HERE) -> None:
    """Remove orphans as that machine does."""
    cleanup.remove_orphans(engine, own=own, machine=machine)


@pytest.mark.parametrize(
    ("address", "tls", "labelled"), [("unix:///nowhere", None, False), ("tcp://192.0.2.7:9", "papers", True)]
)
def test_things_on_other_machines_carry_the_engines_address(address: str, tls: str | None, labelled: bool) -> None:
    """Things on another machine's engine carry the address used, so that a device that leaves can remove them."""
    made = Session((), open_client=lambda engine: Engine())
    try:
        engine = contracts_engine.Engine(name="e", address=address, tls=tls)
        found = made.open_engine("e", engine, "somebodys", lambda _: None).labels
        assert found.get(cleanup.ENGINE_LABEL) == (address if labelled else None)
        assert found[cleanup.RUN_LABEL] == made.token
    finally:
        made.close()
