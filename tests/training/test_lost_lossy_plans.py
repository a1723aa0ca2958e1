"""Trainings by plans with gates or codecs lose a device: the plan that follows has its own, and is trained by them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleetune.contracts.plan import Gate, LinkUse, Plan
from tests.support.codecs.single_process import Residuals, across_cut
from tests.support.training.control_comparison import FP64, difference, whole_model
from tests.support.training.gates import GATES, gate
from tests.support.training.lane_training import LaneModel, train_lane
from tests.support.training.lossy_plans import OPTIONS, reviser_of
from tests.support.training.lost_lanes import TRAINING, losing
from tests.support.training.model_families import BY_NAME, data_request, model_request
from tests.support.training.runs import Prepared, final_state, plan, prepared
from tests.support.training.unsplit_training import Control


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """A small BERT without dropout, in double precision."""
    folder, family = tmp_path_factory.mktemp("bert"), BY_NAME["bert"]
    model = model_request(family, dropout=False, precision="float64")
    return prepared(model, data_request(family, folder), folder)


def first_plan(ready: Prepared, strategy: str) -> Plan:
    """Return a chain of three devices, with gates or with lossy links."""
    chain = replace(plan(ready.units, [3, 4], [[8], [8], [8]]), strategy=strategy)
    if strategy == "d2ft":
        gates = tuple(Gate(subnet=f"bert.encoder.layer.{name}", operations=row) for name, row in GATES.items())
        return replace(chain, gates=gates)
    ends = [("d0", "d1"), ("d1", "d2")]
    there = [LinkUse(source=a, target=b, codec="int4", feedback=True) for a, b in ends]
    back = [LinkUse(source=b, target=a, codec="top-k", ratio=8.0, feedback=True) for a, b in ends]
    return replace(chain, links=(*there, *back))


@pytest.mark.parametrize("strategy", OPTIONS)
def test_a_lossy_plan_follows_a_lossy_one(strategy: str, ready: Prepared, tmp_path: Path) -> None:
    """What the lost device alone held is read from the checkpoint; from there on the gates, or the codecs at the new
    cuts, are those of the plan of the same strategy for the others. What messages had lost stays with links that stay.
    """
    made = first_plan(ready, strategy)
    reviser = reviser_of(ready, made, tmp_path)
    metrics, said = losing(ready, made, tmp_path, "d2", revise=reviser)
    goes_on = next(each for each in said if each.startswith("goes on from round "))
    assert "the checkpoint is read" in goes_on, said
    after, again = reviser(made, ["d2"]).plan, int(goes_on.split()[4])
    assert after.strategy == strategy and (after.gates if strategy == "d2ft" else after.links), after
    lane = LaneModel(ready, whole_model(ready), made, 0)
    if strategy == "d2ft":
        assert after.gates != made.gates
        gate(lane, [made] * again + [after] * (TRAINING.rounds - again))
    else:
        code(ready, lane, [made] * again + [after] * (TRAINING.rounds - again))
    run = Control([each.loss for each in metrics.rounds], final_state(tmp_path))
    found = difference(ready, run, train_lane(lane, TRAINING))
    assert max(found.loss, found.tensor, found.logits) < FP64, found


def code(ready: Prepared, lane: LaneModel, plans: list[Plan]) -> None:
    """Let each round lose at the cuts of its plan what the codecs there do; residuals belong to a cut and its link."""
    residuals: dict[Any, Residuals] = {}

    def crossed(unit: str, output: Any) -> Any:
        made = plans[lane.here["round"]]
        segments = made.lanes[0].segments
        at = next((k for k, segment in enumerate(segments[:-1]) if segment.units[-1] == unit), None)
        if at is None:
            return output
        a, b = segments[at].devices[0], segments[at + 1].devices[0]
        uses = {(use.source, use.target): use for use in made.links}
        there, back = (uses.get(ends, LinkUse(source=ends[0], target=ends[1])) for ends in ((a, b), (b, a)))
        first = output[0] if isinstance(output, tuple) else output
        lost = residuals.setdefault((at, unit, a, b), {})
        coded = across_cut(first, there, back, lost, lane.here["micro_batch"])
        return (coded, *output[1:]) if isinstance(output, tuple) else coded

    for unit in ready.units:
        lane.model.get_submodule(unit).register_forward_hook(
            lambda module, given, output, unit=unit: crossed(unit, output)
        )
