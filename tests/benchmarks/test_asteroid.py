"""The benchmark `asteroid_tables`: problems equal those of the stages, and ratios follow their definitions."""

import pytest

from benchmarks.asteroid_tables import paper
from benchmarks.asteroid_tables.ablations import divided_evenly, mean_over_devices
from benchmarks.asteroid_tables.paper import (
    BERT,
    MODELS,
    default_problem,
    environment,
    hpp_problem,
    identical_devices,
    profile_of,
)
from benchmarks.asteroid_tables.plans import SEARCH_ALL_DEVICES, costs_of, require_plan
from benchmarks.asteroid_tables.speedups import table4_cells
from benchmarks.report import agreement, near, with_paper
from fleetune.solving.hpp.draft import Draft, DraftStage
from fleetune.solving.hpp.instance import Instance

PROBLEM = ("C", 100)


def test_a_problem_has_the_paper_s_devices_and_single_layers() -> None:
    """BERT-small has 53 layers here (56 in the paper), and a round is the paper's mini-batch."""
    problem = default_problem(BERT, environment(*PROBLEM))
    assert [device.name for device in problem.devices] == ["nx-0", "tx2-0", "tx2-1", "nano-0", "nano-1", "nano-2"]
    assert len(problem.layers) == 53
    assert problem.micro_batch * problem.micro_batches == 2048
    assert problem.bandwidth_bytes_per_s[0][1] == 12.5e6


def test_times_by_bytes_take_as_long_in_all() -> None:
    """Times by bytes change the distribution over units, not the total."""
    fleet = identical_devices("nano", 1)
    flops, by_bytes = (profile_of(BERT, fleet, 8, by).times_of("nano-0") for by in (False, True))
    assert sum(row[1] for row in flops.forward_s) == pytest.approx(sum(row[1] for row in by_bytes.forward_s), rel=1e-4)
    assert flops.forward_s != by_bytes.forward_s


def test_a_table_compares_rounds_of_the_same_problem() -> None:
    """`search` is no slower than DP, `search!` uses all devices, and the costs of a plan are reproducible."""
    problem = hpp_problem(BERT, environment("D"), 8, 4)
    ours, forced, dp = (require_plan(problem, name) for name in ("search", SEARCH_ALL_DEVICES, "dp"))
    assert ours.fits and forced.fits and ours.round_s <= dp.round_s
    assert len([device for stage in forced.draft.stages for device in stage.devices]) == 4
    again = costs_of(Instance(problem), ours.draft)
    assert (again.round_s, again.description) == (ours.round_s, ours.description)


def test_the_ring_s_bandwidth_is_what_the_paper_leaves() -> None:
    """With an all-reduce at that bandwidth, DP is slower than Asteroid by the paper's factor."""
    for cell in table4_cells([BERT]):
        said = paper.SPEED_UPS[BERT.name][cell.link]
        reduce_s = cell.dp.reduce_s * cell.link[1] / cell.ring_mbit_per_s
        dp_s = cell.dp.round_s - cell.dp.reduce_s + reduce_s
        assert dp_s / (cell.device.round_s / said.device) == pytest.approx(said.dp)


def test_every_model_has_its_numbers() -> None:
    """Tables 4 and 7 have numbers for all models, Table 2 for the image models."""
    names = {model.name for model in MODELS}
    assert set(paper.SPEED_UPS) == set(paper.PLANNING_S) == names
    assert set(paper.VOLUMES) == names - {BERT.name}


def test_ablation_divides_evenly_and_averages_devices() -> None:
    """The ablation keeps groups, divides samples evenly, and averages times over devices."""
    draft = Draft((DraftStage(0, 2, (0, 1, 2), (8, 1, 1)), DraftStage(2, 3, (3,), (10,))), (3, 1))
    assert [stage.samples for stage in divided_evenly(draft).stages] == [(4, 3, 3), (10,)]
    assert mean_over_devices((((1.0, 2.0),), ((3.0, 6.0),))) == ((2.0, 4.0),)


def test_ratios_near_the_paper_s() -> None:
    """A ratio is near within a factor of 1.25 either way, and an agreement without cells has no value."""
    assert near(1.25, 1.0) and near(0.8, 1.0) and not near(1.26, 1.0) and not near(0.79, 1.0)
    assert with_paper(1.234, 1.2) == "1.23 (1.2)" and with_paper(2) == "2.00"
    half = agreement("half", [True, False], "cells")
    assert (half.value, half.ok, half.about) == (0.5, False, "cells (1 of 2)")
    assert agreement("none", [], "cells").value is None
