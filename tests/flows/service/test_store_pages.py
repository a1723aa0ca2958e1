"""The store over HTTP gives out what was stored, and nothing else of this machine."""

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from fleetune.store import Store
from flows.service.store_pages import locked_store_pages
from flows.service_files import OPEN, ServiceFiles


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """The folder of an artifact with a page."""
    made = tmp_path / "made"
    made.mkdir()
    (made / "report.txt").write_text("scores")
    store = Store(tmp_path / "runs")
    return store.folder("plan", store.put("plan", made, stage_key="0" * 64, inputs={}))


def test_a_link_inside_an_artifact_is_not_served(artifact: Path, tmp_path: Path) -> None:
    """A store from elsewhere may hold a link in place of a file that its manifest names: what it leads to stays here,
    and the file itself is served."""
    store = Store(tmp_path / "runs")
    files = ServiceFiles(store.local)
    files.folder.mkdir(parents=True)
    pages = TestClient(locked_store_pages(store, files, password=True))
    address = f"/{files.key()}/artifacts/plan/{artifact.name}/report.txt"
    assert pages.get(f"/open{address[33:]}").status_code == 404
    assert pages.get(address).text == "scores"
    (tmp_path / "shadow").write_text("secret")
    (artifact / "report.txt").unlink()
    (artifact / "report.txt").symlink_to(tmp_path / "shadow")
    answer = pages.get(address)
    assert answer.status_code == 404 and "secret" not in answer.text and "it is a link" in answer.text


def test_no_key_that_an_open_service_shows_is_valid_later(artifact: Path, tmp_path: Path) -> None:
    """Bug: after one `up --no-password`, whose links and those of earlier runs everybody can read, their key was valid
    for ever. It ends with the next service that has a password, which keeps its own over restarts; without a password
    every link works. The mark of a database stays."""
    store = Store(tmp_path / "runs")
    files = ServiceFiles(store.local)
    files.folder.mkdir(parents=True)
    mark, before, shown = files.mark("postgresql://db"), files.key(), f"artifacts/plan/{artifact.name}/report.txt"

    def statuses(password: bool, *keys: str) -> list[int]:
        pages = TestClient(locked_store_pages(store, files, password))
        return [pages.get(f"/{key}/{shown}").status_code for key in keys]

    assert statuses(True, before, OPEN) == [200, 404]
    files.end_keys()  # as the keeper does before it starts such a server
    assert statuses(False, before, OPEN) == [200, 200]
    after = ServiceFiles(store.local).key()
    assert statuses(True, before, OPEN, after) == [404, 404, 200]
    assert files.mark("postgresql://db") == mark
