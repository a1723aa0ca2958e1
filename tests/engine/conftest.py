"""Tests that need a container engine: left out where none can serve, and never unnoticed.

All of them carry the marker `engine` and need the image fleetune-mounted; `@pytest.mark.image("plan")` on a test says
that it needs another. With FLEETUNE_ENGINE_TESTS=required it is an error to leave one out.
"""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import docker
import psutil
import pytest

from containers import engine_api, images
from fleetune.launching.docker import cleanup
from tests.support.engine.second_engine import second as second
from tests.support.left_out import LeftOut, leave_out

HERE = Path(__file__).parent
USUAL = "mounted"
LABELS = ("fleetune.run", "fleetune.test")
"""What everything carries that we make on an engine, or that a test does."""
WEIGHTS = {Path("/sys/fs/cgroup/cpu/docker/cpu.shares"): 4096, Path("/sys/fs/cgroup/docker/cpu.weight"): 400}
"""Weight of all containers together, in Linux's two versions of cgroups. By default it is that of one session, and each
process of the tests beside these is a session: containers got a tenth of the processor, and these tests came last."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of this folder, and leave out those that nothing here can serve."""
    ours = [item for item in items if HERE in item.path.parents]
    for item in ours:
        item.add_marker("engine")
    needs = {item: _needs(item) for item in ours}
    lacks = _lacks(set().union(*needs.values()))
    left_out = [item for item in ours if needs[item] & set(lacks)]
    if left_out:
        said = _said(len(left_out), lacks)
        leave_out(config, items, left_out, said, "FLEETUNE_ENGINE_TESTS")


def _needs(item: pytest.Item) -> set[str]:
    return {USUAL, *(target for mark in item.iter_markers("image") for target in mark.args)}


def _lacks(needed: set[str]) -> dict[str, str]:
    """Of the images needed: why there is none to use."""
    try:
        labels = engine_api.image_labels(engine_api.find_engine().socket)
    except engine_api.EngineUnavailable as error:
        return dict.fromkeys(sorted(needed), f"no engine answers {error}")
    lacks = {target: images.unusable_reason(labels, target) for target in sorted(needed)}
    return {target: lack for target, lack in lacks.items() if lack}


def _said(left_out: int, lacks: dict[str, str]) -> LeftOut:
    reasons = ", ".join(dict.fromkeys(lacks.values()))
    engine = "engine " if "no engine" in reasons else ""
    return LeftOut(
        tests=left_out,
        what="containers",
        why=reasons,
        how=f"make {engine}images ONLY='{' '.join(lacks)}', then make test",
    )


@pytest.fixture(scope="session")
def engine() -> Iterator[Any]:
    """The client of the engine that answers here, whose containers weigh as much as four sessions meanwhile."""
    with weighing(WEIGHTS):
        yield from _client()


def _client() -> Iterator[Any]:
    client = docker.DockerClient(base_url=f"unix://{engine_api.find_engine().socket}", version="auto")
    yield client
    client.close()


@contextmanager
def weighing(weights: Mapping[Path, int]) -> Iterator[None]:
    """Set weights where this user may, and set them back at the end."""
    before = {}
    for path, weight in weights.items():
        with suppress(OSError):  # another version, another user, or no container has run yet
            before[path] = path.read_text()
            path.write_text(str(weight))
    try:
        yield
    finally:
        for path, weight in before.items():
            with suppress(OSError):
                path.write_text(weight)


@pytest.fixture(scope="session")
def store_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Root of a store for tests whose runs are the same up to the profile: devices are profiled once."""
    return tmp_path_factory.mktemp("engine") / "store"


@pytest.fixture(autouse=True)
def nothing_left(engine: Any) -> Iterator[None]:
    """Whatever a test makes on the engine is gone after it: containers, also ended ones, networks and volumes."""
    before = _ours(engine)
    yield
    left = _ours(engine) - before
    assert not left, f"left on the engine: {', '.join(sorted(left))}"


def _ours(engine: Any) -> Counter[str]:
    """All that carries one of our labels, by kind and name; what another run on this engine needs is its own."""
    return Counter(
        f"{kind} {thing.name}"
        for label in LABELS
        for kind, things in (
            ("container", engine.containers.list(all=True, filters={"label": label}, ignore_removed=True)),
            ("network", engine.networks.list(filters={"label": label})),
            ("volume", engine.volumes.list(filters={"label": label})),
        )
        for thing in things
        if not _is_of_another(thing)
    )


def _is_of_another(thing: Any) -> bool:
    """Whether whoever made it runs, and is no process of this test run."""
    labels = thing.attrs.get("Labels") or thing.attrs.get("Config", {}).get("Labels") or {}
    owner = re.fullmatch(r"[^/]+/(\d+)/\d+", labels.get(cleanup.OWNER_LABEL, ""))
    try:
        line = psutil.Process(int(owner[1])).parents() if owner else []
    except psutil.NoSuchProcess:
        return False
    return owner is not None and int(owner[1]) != os.getpid() and os.getpid() not in {each.pid for each in line}
