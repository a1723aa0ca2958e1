"""Publication never fails or delays a run."""

import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest

from fleetune.store import StageRecord, Store
from flows.context import StageSelection
from flows.run_pages import publication
from flows.run_pages.page import Page
from flows.run_pages.publication import Artifacts, Publication
from flows.runner import Runner
from flows.without_prefect import run_without_prefect
from tests.support.flows.run_pages.runs import kept
from tests.support.flows.toy_pipeline import World, toy_context

FLOW_RUN = str(uuid4())
LIMIT_S = 30.0


class Published(Artifacts):
    """Stands for the server, which goes after the first pages: keeps the pages by key."""

    def __init__(self) -> None:
        self.pages: dict[str, Page] = {}
        self.first = threading.Event()

    def create(self, page: Page, name: str, flow_run: UUID) -> UUID:
        """Keep a page."""
        assert str(flow_run) == FLOW_RUN
        self.pages[name] = page
        self.first.set()
        return uuid4()

    def update(self, artifact: UUID, page: Page) -> None:
        """Take no update."""
        raise ConnectionError("the server is gone")


@pytest.fixture(autouse=True)
def no_thread_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Bug: a thread outlived its test, and published its page to a server that it started in another one."""
    yield
    for thread in threading.enumerate():
        if thread.name == "publication":
            thread.join(LIMIT_S)
            assert not thread.is_alive()


def runner_of(world: World, root: Path) -> Runner:
    """A runner of the toy pipeline, whose stages are none of the real ones."""
    return Runner(toy_context(root), world.config(), StageSelection())


def test_the_last_page_says_how_the_run_ended(world: World, root: Path) -> None:
    """The overview and the history are there when the block ends, with the run's final state."""
    server, runner = Published(), runner_of(world, root)
    with Publication(runner, FLOW_RUN, logging.getLogger("test"), server):
        run_without_prefect(runner)
    assert set(server.pages) == {"toy-overview", "toy-history"}
    assert (
        "**done**" in server.pages["toy-overview"].markdown
        and "never run before" in server.pages["toy-overview"].markdown
    )
    assert server.pages["toy-history"].description == "1 runs: 1 done"


class Pages(Published):
    """Stands for the server: counts the updates of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.updates = 0
        self.third = threading.Event()

    def update(self, artifact: UUID, page: Page) -> None:
        """Take an update."""
        self.updates += 1
        if self.updates == 3:
            self.third.set()


@pytest.mark.parametrize("state", ["running", "done"])
def test_the_page_is_updated_while_the_model_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """Bug: a training of hours had a page of its first minute. It is made again now and then while the model is
    trained, without anybody asking, and at no other time."""
    pages = Pages()
    monkeypatch.setattr(publication, "TRAINING_S", 0.01)
    monkeypatch.setattr(publication, "PAUSE_S", 0.01)
    store = Store(tmp_path / "runs")
    run = kept(store, "by.hand-1", until="plan", state="running")
    training = replace(run, stages=(*run.stages, StageRecord(stage="train", state=state)))
    runner: Any = SimpleNamespace(record=training, context=SimpleNamespace(store=store), rerun_of="", error=None)
    with Publication(runner, FLOW_RUN, logging.getLogger("test"), pages):
        assert pages.third.wait(LIMIT_S if state == "running" else 0.5) == (state == "running")


def test_a_server_that_is_gone_is_a_warning(world: World, root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The server vanishes in the middle of a run: the run ends well, and its log says what is missing."""
    server, runner = Published(), runner_of(world, root)
    with caplog.at_level(logging.WARNING), Publication(runner, FLOW_RUN, logging.getLogger("test"), server) as pages:
        pages.update()
        assert server.first.wait(LIMIT_S)
        assert run_without_prefect(runner).state == "done"
    assert "could not be published (the server is gone)" in caplog.text


def test_a_server_that_hangs_does_not_hold_a_cancelled_run(world: World, root: Path) -> None:
    """A cancelled run has ten seconds to end; a page that cannot be sent gets three of them."""
    hangs, entered = threading.Event(), threading.Event()

    class Hanging(Published):
        def create(self, *_: Any) -> UUID:
            entered.set()
            hangs.wait(LIMIT_S)
            return uuid4()

    with (
        pytest.raises(KeyboardInterrupt),
        Publication(runner_of(world, root), FLOW_RUN, logging.getLogger("test"), Hanging()) as pages,
    ):
        pages.update()
        assert entered.wait(LIMIT_S)
        begun_s = time.monotonic()
        raise KeyboardInterrupt
    assert time.monotonic() - begun_s < 10
    hangs.set()
