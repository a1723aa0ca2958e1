"""Images by their paths in a table: each is read where the table is, or below the folder of the source."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from fleetune.contracts.run_config import DataRequest
from fleetune.data.local_data import report_digest
from fleetune.data.sources import content_digest, validate_data
from fleetune.data.writer import prepare_data
from fleetune.errors import Refused
from tests.support.data.samples import IMAGES, TEXT, json_lines, prepared, whole


def table(place: Path, first: int, below: str = "") -> Path:
    """A folder with grey images from a level on, and a table with their paths below it."""
    place.mkdir(parents=True)
    rows = [{"file_name": f"{below}{n}.npy", "label": "ab"[n % 2]} for n in range(6)]
    for n in range(6):
        np.save(place / f"{n}.npy", np.full((8, 8), first + n, dtype=np.uint8))
    return json_lines(place / "metadata.jsonl", rows)


def levels(folder: Path, split: str, source: Path) -> list[int]:
    """Grey levels of the images of a split."""
    rows = whole(prepared(folder, source, IMAGES, image_column="file_name"), split)["pixel_values"]
    return sorted(np.rint((rows[:, 0, 0, 0] * 0.5 + 0.5) * 255).astype(int).tolist())


@pytest.mark.parametrize("below", [True, False])
def test_paths_are_those_beside_the_table(below: bool, tmp_path: Path) -> None:
    """Bug: metadata.jsonl in the folder of a split, as `imagefolder` has it, was refused; paths from the folder of the
    source are read as before, and of two images of a name the one beside the table counts."""
    for number, split in enumerate(("train", "test")):
        table(tmp_path / "set" / split, 100 * number, f"{split}/" if below else "")
    for n in range(3):
        np.save(tmp_path / "set" / f"{n}.npy", np.full((8, 8), 250, dtype=np.uint8))
    assert levels(tmp_path / "a", "train", tmp_path / "set") == [*range(6)]
    assert levels(tmp_path / "b", "test", tmp_path / "set") == [*range(100, 106)]


def test_paths_and_links_out_of_the_source_are_refused(tmp_path: Path) -> None:
    """Nothing outside of the folder of the source is read, whatever the folder of the table is."""
    table(tmp_path / "other", 0)
    source = table(tmp_path / "set" / "train", 0, "../../other/")
    with pytest.raises(Refused, match=r"line 1, file_name: no file '../../other/0.npy' inside .*set; give paths"):
        levels(tmp_path / "a", "train", tmp_path / "set")
    json_lines(source, [{"file_name": "../out.npy", "label": "a"}])
    (tmp_path / "set" / "out.npy").symlink_to(tmp_path / "other" / "0.npy")
    with pytest.raises(Refused, match=r"is a link to .*, outside of"):
        levels(tmp_path / "b", "train", tmp_path / "set")


def test_a_table_may_be_the_source_of_the_images_beside_it(tmp_path: Path) -> None:
    """Bug: a table by itself could name no images. What it names counts for the digest, as in a folder, and lies beside
    or below it."""
    source = table(tmp_path / "set", 0)
    assert sorted(levels(tmp_path / "a", "train", source) + levels(tmp_path / "b", "test", source)) == [*range(6)]
    request = DataRequest(source=str(source), image_column="file_name")
    before = content_digest(request)
    np.save(tmp_path / "set" / "3.npy", np.full((8, 8), 9, dtype=np.uint8))
    assert content_digest(request) != before
    features = json_lines(tmp_path / "set" / "f.jsonl", [{"file_name": {"bytes": None, "path": "3.npy"}, "label": "a"}])
    request = DataRequest(source=str(features), image_column="file_name")
    before = content_digest(request)
    np.save(tmp_path / "set" / "3.npy", np.full((8, 8), 3, dtype=np.uint8))
    assert content_digest(request) != before
    (tmp_path / "set" / "more").mkdir()
    lower = json_lines(tmp_path / "set" / "more" / "r.jsonl", [{"file_name": "../3.npy", "label": "a"}])
    with pytest.raises(Refused, match=r"line 1, file_name: no file '../3.npy' inside .*more; give paths"):
        levels(tmp_path / "c", "train", lower)
    (tmp_path / "set" / "more" / "4.npy").symlink_to(tmp_path / "set" / "4.npy")
    json_lines(lower, [{"file_name": "4.npy", "label": "a"}])
    with pytest.raises(Refused, match=r"no file '4.npy' inside .*more; give paths"):
        levels(tmp_path / "d", "train", lower)


def test_rows_of_texts_name_no_images(tmp_path: Path) -> None:
    """Bug: each row of a file of texts was parsed for its digest, and what a column `image` named counted for it."""
    source = table(tmp_path / "set", 0)
    rows = [{"text": f"text {n}", "image": f"{n}.npy", "label": "ab"[n % 2]} for n in range(6)]
    request = DataRequest(source=str(json_lines(source, rows)))
    found = []
    for task in ("sequence-classification", "image-classification"):
        found.append(report_digest(request, task))
        np.save(tmp_path / "set" / "3.npy", np.full((8, 8), len(found), dtype=np.uint8))
        found.append(report_digest(request, task))
    assert (found[0] == found[1], found[2] == found[3]) == (True, False)
    prepare_data(request, TEXT, tmp_path / "d", 0, expected_digest=found[0])


def test_images_in_rows_are_not_kept_for_the_digest(tmp_path: Path) -> None:
    """Bug: the digest of a table by itself held each text of its column of images at once, also images in base64."""
    rows = [{"image": f"{n}" * 100_000, "label": "a"} for n in range(10, 110)]
    request = DataRequest(source=str(json_lines(tmp_path / "r.jsonl", rows)))
    tracemalloc.start()
    try:
        content_digest(request)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("files", [("set/metadata.jsonl",), ("set/*.jsonl",)])
def test_files_of_a_list_name_no_images(files: tuple[str, ...], tmp_path: Path) -> None:
    """Images that a file of a list names would count for no digest, so that they are refused."""
    table(tmp_path / "set", 0)
    with pytest.raises(Refused, match=r"holds the path '0.npy'; with paths, data.source must be the folder"):
        prepared(
            tmp_path / "d", "", IMAGES, image_column="file_name", files=tuple(f"{tmp_path}/{name}" for name in files)
        )


def test_a_refusal_cuts_what_is_no_path(tmp_path: Path) -> None:
    """Bug: an image in base64 was printed whole, megabytes of it, as the path that it is not."""
    source = json_lines(tmp_path / "r.jsonl", [{"image": "iVBO" * 100_000, "label": "a"}])
    for given in ({"source": str(source)}, {"source": "", "files": (str(source),)}):
        with pytest.raises(Refused, match="iVBOiVBO") as refused:
            validate_data(DataRequest(**given), "image-classification")
        assert len(str(refused.value)) < 1000
