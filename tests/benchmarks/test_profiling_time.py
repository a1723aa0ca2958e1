"""The benchmark `profiling_time`: sums are correct, and remarks name everything smaller than in the paper."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.profiling_time.table8 import (
    CORES,
    LARGEST_BATCH,
    MODELS,
    QUICK_CORES,
    QUICK_MODELS,
    SMALL_IMAGES,
    Model,
    ProfilingTimes,
    fleet,
    table8,
    time_profiling,
)
from fleetune.contracts.fleet import DOCKER
from fleetune.launching import LocalSites


def made(model: Model, pace: float, least: int = 1) -> ProfilingTimes:
    """Times of a model that needs `pace` seconds of a whole core on each device."""
    spent = {name: pace / cores for name, cores in CORES.items()}
    return ProfilingTimes(model, 10, (least, model.largest), spent, 2 * pace)


def test_all_four_stand_beside_the_paper_s() -> None:
    """Every model has a row; the last row has the sums beside the paper's three devices."""
    found = [made(model, 30.0) for model in MODELS]
    sheet = table8(found, fleet(CORES))
    assert [row[0] for row in sheet.rows] == [*(model.name for model in MODELS), "all four"]
    ours = ("2 min 0 s", "3 min 20 s", "6 min 40 s", "4 min 0 s")
    assert tuple(sheet.rows[-1][3:]) == (*ours, "82 min", "51 min", "25 min")
    assert all(len(row) == len(sheet.columns) for row in sheet.rows)
    values = {figure.name: figure.value for figure in sheet.figures}
    assert values["profiling_all_edge-0.6"] == pytest.approx(200.0)
    assert values["profiling_resnet-50_edge-0.3"] == pytest.approx(100.0)
    assert values["wall_all"] == 240.0


def test_what_is_smaller_or_left_out_is_told() -> None:
    """Remarks name smaller and missing batch sizes and missing models, without which there are no sums."""
    said = " ".join(table8([made(QUICK_MODELS[0], 1.0, least=2)], fleet(CORES)).remarks)
    assert "the largest batch of MobileNetV2. Nothing is scaled up" in said
    assert "Left out of the paper's four: Bert-small, EfficientNet-B1, ResNet50." in said
    assert "From 2 on" in said and "were not slowed down" in said
    last = table8([made(QUICK_MODELS[0], 1.0)], fleet(CORES)).rows[-1]
    assert last[3:7] == ("", "", "", "") and last[-1] == "25 min"
    whole = [made(replace(model, largest=LARGEST_BATCH[model.name]), 1.0) for model in MODELS]
    plain = " ".join(table8(whole, fleet(CORES)).remarks)
    assert "Smaller" not in plain and "Left out" not in plain and "From 2 on" not in plain


def test_containers_are_said_to_be_held() -> None:
    """For containers the remark says that their CPU shares were limited."""
    remarks = table8([made(MODELS[0], 1.0)], fleet(CORES, DOCKER)).remarks
    assert "to which its container was held" in remarks[0] and "slowed" not in remarks[0]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.file)
def test_models_are_the_paper_s(model: Model) -> None:
    """Every model has a file in configs, batches at most as large as the paper's, and enough data for one batch."""
    assert model.request.granularity == "layer"
    assert model.largest <= LARGEST_BATCH[model.name]
    assert (model.data.train_samples or 0) >= model.largest


def test_a_profile_is_timed_on_every_device(tmp_path: Path) -> None:
    """Real processes measure a device of 0.6 cores."""
    tiny = Model("ViT", "vit-tiny", SMALL_IMAGES, 2)
    with LocalSites() as sites:
        found = time_profiling(tiny, fleet(QUICK_CORES), sites, tmp_path)
    assert found.batch_sizes == (1, 2) and found.units > 4
    assert 0 < found.profiling_s["edge-0.6"] * QUICK_CORES["edge-0.6"] < found.wall_s
