"""Symbolic links that leave a folder."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fleetune.contracts.run_config import DataRequest, Lora, ModelRequest
from fleetune.data.sources import content_digest
from fleetune.errors import Refused
from fleetune.filesystem import check_symlinks, leaves_folder
from fleetune.models.source import local_folders, source_folder

Use = Callable[[Path], object]


def as_data(folder: Path) -> object:
    return content_digest(DataRequest(source=str(folder)))


def as_model(folder: Path) -> object:
    return source_folder(ModelRequest(source=str(folder), task="causal-lm"))


def as_adapter(folder: Path) -> object:
    lora = Lora(targets=("c_attn",), start=str(folder))
    return local_folders(ModelRequest(config={"model_type": "gpt2"}, task="causal-lm", lora=lora))


@pytest.mark.parametrize("use", [as_data, as_model, as_adapter])
@pytest.mark.parametrize("leads_to", ["../secret", "../elsewhere/secret", "../nowhere", "/etc/passwd"])
def test_a_folder_of_somebody_leads_nowhere_else(tmp_path: Path, use: Use, leads_to: str) -> None:
    """Links in model and data folders were once followed and copied into containers wherever they led."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "secret").write_text("s")
    folder = tmp_path / "given"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.csv").write_text("text,label\n")
    (folder / "deep" / "fine").symlink_to("../a.csv")
    use(folder)
    (folder / "it").symlink_to(leads_to)
    with pytest.raises(Refused, match=rf"{folder}/it is a link to .*, outside of {folder}"):
        use(folder)


def test_the_hubs_cache_is_links(tmp_path: Path) -> None:
    """Links of hub snapshots are followed into their own repository's blobs only."""
    for name in ("models--a--b", "models--c--d", "mine"):
        (tmp_path / name / "snapshots" / "0" / "onnx").mkdir(parents=True)
        (tmp_path / name / "blobs").mkdir()
        (tmp_path / name / "blobs" / "x").write_text("x")
    snapshot = tmp_path / "models--a--b" / "snapshots" / "0"
    (snapshot / "config.json").symlink_to("../../blobs/x")
    (snapshot / "onnx" / "model").symlink_to("../../../blobs/x")
    check_symlinks(snapshot, "model")
    check_symlinks(snapshot / "onnx", "model")
    (snapshot / "other").symlink_to("../../../models--c--d/blobs/x")
    assert leaves_folder(snapshot / "other", snapshot)
    other = tmp_path / "mine" / "snapshots" / "0"
    (other / "it").symlink_to("../../blobs/x")
    assert leaves_folder(other / "it", other)
