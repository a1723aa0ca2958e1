"""The store over HTTP gives out what was stored, and nothing else of this machine."""

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from fleetune.store import Store
from flows.service.store_pages import locked_store_pages


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
    pages = TestClient(locked_store_pages(Store(tmp_path / "runs"), "key", password=True))
    address = f"/key/artifacts/plan/{artifact.name}/report.txt"
    assert pages.get(address.replace("key", "kez")).status_code == 404
    assert pages.get(address).text == "scores"
    (tmp_path / "shadow").write_text("secret")
    (artifact / "report.txt").unlink()
    (artifact / "report.txt").symlink_to(tmp_path / "shadow")
    answer = pages.get(address)
    assert answer.status_code == 404 and "secret" not in answer.text and "it is a link" in answer.text
