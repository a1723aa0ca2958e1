"""Table 2: bytes that cross between five Nanos in a mini-batch, hybrid data against hybrid pipeline parallelism."""

from collections.abc import Sequence

from benchmarks.parts.asteroid.paper import VOLUME_RATIOS, VOLUMES
from benchmarks.parts.asteroid.planned import must
from benchmarks.parts.asteroid.setting import Model, environment, usual
from benchmarks.parts.asteroid.sheet import Sheet, share

REMARKS = (
    "Eq. (1) with HetPipe's allocation, eq. (2) with Asteroid's plan, MB of a mini-batch (the paper's). No planner "
    "minimises its volume: a plan may send more because the links have time for it.",
    "EfficientNet-B1: HetPipe's best is a single pipeline of all five Nanos, for which eq. (1) has no 2GP; the paper's "
    "has several. ResNet50: its features cross cuts that the paper's plan does not make.",
)


def table2(models: Sequence[Model]) -> Sheet:
    """For the models that the paper lists."""
    columns = ("model", "HDP MB", "HPP MB", "HDP / HPP", "HPP of search MB", "weights MB", "HetPipe | Asteroid")
    sheet = Sheet("Table 2: communication volume, five Nanos at 100 Mbit/s", columns, remarks=list(REMARKS))
    holds = []
    for model in (model for model in models if model.name in VOLUMES):
        problem = usual(model, environment("A"))
        hdp, hpp, ours = (must(problem, name) for name in ("hetpipe", "asteroid", "search"))
        paper = VOLUMES[model.name]
        ratio = hdp.volume_bytes / hpp.volume_bytes
        holds.append(VOLUME_RATIOS[0] <= round(ratio, 1) <= VOLUME_RATIOS[1])
        sheet.rows.append(
            (
                model.name,
                f"{hdp.volume_bytes / 1e6:.1f} ({paper.hdp})",
                f"{hpp.volume_bytes / 1e6:.1f} ({paper.hpp})",
                f"{ratio:.2f} ({paper.hdp / paper.hpp:.2f})",
                f"{ours.volume_bytes / 1e6:.1f}",
                f"{sum(layer.trainable_bytes or 0 for layer in problem.layers) / 1e6:.1f}",
                f"{hdp.words}\n{hpp.words}",
            )
        )
    sheet.figures = [share("table2_hdp_over_hpp", holds, "ratios of volumes within the paper's 1.9-2.7")]
    return sheet
