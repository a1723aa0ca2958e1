"""Gates chosen anew while a training goes on (D2FT): by the gradients of a round in which all heads run, each choice
followed by the next round, by a resumed training, and by the plan that follows a loss. Controls are plain PyTorch."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fleetune.contracts import json_io
from fleetune.contracts.head_scores import HeadScores, ReportedScores, summed_scores
from fleetune.contracts.metrics import RoundMetrics
from fleetune.contracts.plan import Gate, Plan
from fleetune.contracts.run_config import Lora
from fleetune.errors import Infeasible, Refused, TryAgain
from fleetune.program.in_force import after_rounds, regated
from fleetune.training.decisions import Decisions, GateRefresh
from tests.support.clock import fleets
from tests.support.training.control_comparison import FP64, difference, whole_model
from tests.support.training.ends import assert_same_bits
from tests.support.training.gates import GATES, gate, gates_of_bert
from tests.support.training.lane_training import LaneModel, train_lane
from tests.support.training.lanes import TRAINING
from tests.support.training.listeners import StopAfter
from tests.support.training.lossy_plans import reviser_of
from tests.support.training.lost_lanes import TRAINING as LOSING
from tests.support.training.lost_lanes import losing
from tests.support.training.model_families import BY_NAME, data_request, model_request
from tests.support.training.runs import Prepared, final_state, plan, prepared, run_plan, training_task
from tests.support.training.unsplit_training import Control

NAMES = [f"bert.encoder.layer.{name}" for name in GATES]
Scores = dict[str, HeadScores]


def by_fisher(plan: Plan, scores: Iterable[HeadScores]) -> Mapping[str, str]:
    """Train each head where it learns most, run it where it learns second most, and skip it where least."""
    found = {}
    for each in scores:
        best = sorted(range(plan.micro_batches), key=lambda m, own=each.fisher: -own[m])  # type: ignore[misc]
        found[each.name] = "".join(str(1 + best.index(m)) for m in range(plan.micro_batches))
    return found


class Chooser:
    """Chooses `by_fisher` and remembers by what."""

    def __init__(self) -> None:
        self.seen: list[Scores] = []

    def __call__(self, plan: Plan, scores: Iterable[HeadScores]) -> Mapping[str, str]:
        """Choose."""
        told = tuple(scores)
        self.seen.append({each.name: each for each in told})
        return by_fisher(plan, told)


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """A small BERT without dropout, in double precision."""
    return bert(tmp_path_factory.mktemp("bert"))


def bert(folder: Path, **changes: Any) -> Prepared:
    """Prepare it, with changes of its request."""
    family = BY_NAME["bert"]
    model = model_request(family, dropout=False, precision="float64", **changes)
    return prepared(model, data_request(family, folder), folder)


def refreshing(ready: Prepared, cuts: list[int], shares: list[list[int]], every: int) -> Plan:
    """Return a plan of one lane with gates that are chosen anew every so many rounds."""
    chain = replace(plan(ready.units, cuts, shares), gates=gates_of_bert(), strategy="d2ft")
    return replace(chain, refresh_gates_every_rounds=every)


def plans_by_round(made: Plan, chosen: Mapping[int, Mapping[str, str]], rounds: int) -> list[Plan]:
    """Return the plan that each round runs. chosen: round -> operations from the next one on."""
    found, full = list[Plan](), regated(made, dict.fromkeys(NAMES, "111"))
    for round in range(rounds):
        found.append(full if round in chosen else made)
        made = regated(made, chosen.get(round, {}))
    return found


class Watched:
    """Remembers the weights before a plain loop's rounds, and the gradients of each of their micro-batches."""

    def __init__(self, lane: LaneModel) -> None:
        self.weights: dict[int, dict[str, torch.Tensor]] = {}
        self.gradients: dict[tuple[int, int], dict[str, torch.Tensor]] = {}
        self._lane, self._backward = lane, lane.backward
        lane.backward = self.backward  # type: ignore[method-assign]
        for name, parameter in lane.model.named_parameters():
            parameter.register_hook(lambda gradient, name=name: self._keep(name, gradient))

    def backward(self, round: int, step: int | None = None) -> float:
        """Run a round."""
        self.weights[round] = {n: p.detach().clone() for n, p in self._lane.model.named_parameters()}
        return self._backward(round, step)

    def _keep(self, name: str, gradient: torch.Tensor) -> None:
        here = self._lane.here["round"], self._lane.here["micro_batch"]
        self.gradients.setdefault(here, {})[name] = gradient.detach().clone()

    def scores(self, round: int, micro_batches: int) -> Scores:
        """Return the scores of a round by their definition, eq. (2) and (3)."""
        found = {}
        for name in NAMES:
            gradients = [parts(self.gradients[round, m], name) for m in range(micro_batches)]
            found[name] = HeadScores(
                name=name,
                weight_magnitude=sum(float(each.abs().sum()) for each in parts(self.weights[round], name)),
                gradient_magnitude=sum(float(each.abs().sum()) for one in gradients for each in one),
                fisher=tuple(sum(float(each.square().sum()) for each in one) for one in gradients),
            )
        return found


def parts(tensors: Mapping[str, torch.Tensor], name: str) -> list[torch.Tensor]:
    """Return the parts of a head of two: rows that make it or its hidden units, columns that read them."""
    block, head = name.split("#")
    made = [f"attention.self.{kind}" for kind in ("query", "key", "value")] + ["intermediate.dense"]
    rows = [tensors[f"{block}.{layer}.{kind}"].chunk(2)[int(head)] for layer in made for kind in ("weight", "bias")]
    reads = ("attention.output.dense", "output.dense")
    return [*rows, *(tensors[f"{block}.{layer}.weight"].chunk(2, dim=1)[int(head)] for layer in reads)]


def assert_same_scores(found: Scores, expected: Scores) -> None:
    """Assert that they differ by rounding alone."""
    assert found.keys() == expected.keys()
    for name, each in found.items():
        assert each.weight_magnitude == pytest.approx(expected[name].weight_magnitude, rel=1e-9)
        assert each.gradient_magnitude == pytest.approx(expected[name].gradient_magnitude, rel=1e-9)
        assert each.fisher == pytest.approx(expected[name].fisher, rel=1e-9)


@pytest.mark.parametrize("shares", [[[8]], [[8], [8]], [[5, 3], [2, 6]]], ids=["alone", "pipeline", "groups"])
def test_an_ordinary_round_scores_all_heads_and_its_choice_is_followed(
    shares: list[list[int]], ready: Prepared, tmp_path: Path
) -> None:
    """Rounds 2 and 5 of 7 run all heads and step by the whole gradient; scores are those of their own micro-batches and
    weights; gates from then on are the chosen ones."""
    made = refreshing(ready, [2] * (len(shares) - 1), shares, every=3)
    choose = Chooser()
    metrics = run_plan(ready, made, TRAINING, tmp_path, choose_gates=choose)
    chosen = {each.round: each.gates for each in metrics.rounds if each.gates}
    assert list(chosen) == [2, 5] and chosen[2] != chosen[5] != {gate.subnet: gate.operations for gate in made.gates}
    lane = LaneModel(ready, whole_model(ready), made, 0)
    gate(lane, plans_by_round(made, chosen, TRAINING.rounds))
    watched = Watched(lane)
    found = difference(
        ready, Control([r.loss for r in metrics.rounds], final_state(tmp_path)), train_lane(lane, TRAINING)
    )
    assert max(found.loss, found.tensor, found.logits) < FP64, found
    for round, scores in zip(chosen, choose.seen, strict=True):
        assert_same_scores(scores, watched.scores(round, made.micro_batches))


def test_a_cut_inside_a_block_divides_the_scores_of_its_heads(tmp_path: Path) -> None:
    """Queries to values on one device, the rest of the block on another: the sums of both are the head's."""
    ready = bert(tmp_path, granularity="layer")
    cut = next(k for k, unit in enumerate(ready.units) if "layer.0.attention.output" in unit)
    made, choose = refreshing(ready, [cut], [[8], [8]], every=1), Chooser()
    metrics = run_plan(ready, made, replace(TRAINING, rounds=1), tmp_path, choose_gates=choose)
    assert metrics.rounds[0].gates == by_fisher(made, choose.seen[0].values())
    lane = LaneModel(ready, whole_model(ready), made, 0)
    watched = Watched(lane)
    train_lane(lane, replace(TRAINING, rounds=1))
    assert_same_scores(choose.seen[0], watched.scores(0, made.micro_batches))


@pytest.mark.parametrize(
    "changes",
    [
        {"lora": Lora(r=4, alpha=8, targets=("query", "value"))},
        {"freeze": ("bert.embeddings", "bert.encoder.layer.0")},
    ],
    ids=["adapters below the cut", "frozen block"],
)
def test_heads_that_a_device_does_not_train_have_the_scores_of_nothing(changes: dict[str, Any], tmp_path: Path) -> None:
    """A device holds weights of heads without training any: it tells their magnitudes, and no gradients, so that all
    heads are scored and gates are chosen."""
    ready = bert(tmp_path, granularity="layer", **changes)
    adapted, inside = "base_model.model." if "lora" in changes else "", "layer.1.attention.output"
    cut = next(k for k, unit in enumerate(ready.units) if inside in unit)
    made, choose = refreshing(ready, [cut], [[8], [8]], every=1), Chooser()
    made = replace(made, gates=tuple(replace(gate, subnet=adapted + gate.subnet) for gate in made.gates))
    metrics = run_plan(ready, made, replace(TRAINING, rounds=1), tmp_path, choose_gates=choose)
    assert metrics.rounds[0].gates == by_fisher(made, choose.seen[0].values())
    trained = {name for name, each in choose.seen[0].items() if any(each.fisher)}
    assert trained == {adapted + name for name in NAMES if adapted or "layer.1" in name}
    assert all(each.weight_magnitude > 0 for each in choose.seen[0].values())


def test_a_stopped_training_goes_on_with_the_gates_that_it_had_chosen(ready: Prepared, tmp_path: Path) -> None:
    """Ended after round 4 of 7, between two choices, and resumed on links that were measured anew, it ends with the
    same bits as one that was not."""
    made, training = refreshing(ready, [2], [[8], [8]], every=3), replace(TRAINING, checkpoint_every_rounds=99)
    run_plan(ready, made, training, tmp_path / "whole", choose_gates=by_fisher)
    stop = StopAfter(4)
    with pytest.raises(TryAgain, match="^ended after round 4 of 7, with a checkpoint of it"):
        run_plan(ready, made, training, tmp_path / "cut", stop=stop, progress=stop.listen, choose_gates=by_fisher)
    measured_again = {"choose_gates": by_fisher, "latency_s": 2e-4}
    assert run_plan(ready, made, training, tmp_path / "cut", **measured_again).resumed_from_round == 4
    assert_same_bits(tmp_path / "whole", tmp_path / "cut")


def test_the_plan_that_follows_a_loss_keeps_the_chosen_gates(ready: Prepared, tmp_path: Path) -> None:
    """Rounds that run again choose what they had chosen; the plan for the devices that are left begins with it."""
    made = refreshing(ready, [3, 4], [[8], [8], [8]], every=2)
    reviser = reviser_of(ready, made, tmp_path)
    options = {**reviser.problem.options, "refresh_every_rounds": 2}
    reviser = replace(reviser, problem=replace(reviser.problem, options=options))
    asked = list[int]()

    def other_each_time(plan: Plan, scores: Iterable[HeadScores]) -> Mapping[str, str]:
        asked.append(len(asked))
        turn = asked[-1] % 3
        return {n: row[turn:] + row[:turn] for n, row in by_fisher(plan, scores).items()}

    metrics, said = losing(ready, made, tmp_path, "d2", revise=reviser, choose_gates=other_each_time)
    goes_on = next(each for each in said if each.startswith("goes on from round "))
    again, after = int(goes_on.split()[4]), reviser(made, ["d2"]).plan
    assert again > 2 and after.refresh_gates_every_rounds == 2 and after.gates != made.gates
    chosen = {each.round: each.gates for each in metrics.rounds if each.gates}
    assert list(chosen) == [round for round in range(LOSING.rounds) if round % 2] and len(asked) == len(chosen)
    lane = LaneModel(ready, whole_model(ready), made, 0)
    gate(lane, plans_by_round(made, chosen, LOSING.rounds))
    run = Control([each.loss for each in metrics.rounds], final_state(tmp_path))
    found = difference(ready, run, train_lane(lane, LOSING))
    assert max(found.loss, found.tensor, found.logits) < FP64, found


def reports(*values: float) -> dict[str, dict[str, Any]]:
    """Return the report of a device with these scores for every micro-batch of every head."""
    heads = [HeadScores(name=name, weight_magnitude=1.0, gradient_magnitude=1.0, fisher=values) for name in NAMES]
    return {"a": {"scores": [json_io.text(ReportedScores(heads=tuple(heads))).encode()]}}


def test_where_nothing_can_be_chosen_gates_stay(ready: Prepared) -> None:
    """Overflowing gradients have no scores, an unreadable report none that count; a note says so, and training goes
    on."""

    def refuse(plan: Plan, scores: Iterable[HeadScores]) -> Mapping[str, str]:
        raise Infeasible(f"{len(tuple(scores))} heads have scores\nand more")

    made, said = refreshing(ready, [], [[8]], every=1), list[str]()
    before = {gate.subnet: gate.operations for gate in made.gates}
    refresh = GateRefresh(refuse, {}, said.append)
    assert refresh.after(made, 0, {"a": {}}) == before
    assert said == ["round 0: gates stay as they are: 0 heads have scores"]
    assert refresh.after(made, 1, {"a": {"scores": [b"{"]}}) == before and "scores of device a: not JSON" in said[1]
    assert refresh.after(made, 2, reports(1.0, -1.0, 1.0)) == before and "must be a number of at least 0" in said[2]
    with pytest.raises(Refused, match="nothing chooses gates anew; leave refresh_gates_every_rounds out"):
        GateRefresh(None, {}, said.append).after(made, 0, {})


def test_logged_choices_are_repeated(ready: Prepared) -> None:
    """A round that runs again is not decided by other scores than when it ran first, in this process or before it."""
    made, said = refreshing(ready, [], [[8]], every=1), list[str]()
    refresh = GateRefresh(by_fisher, {4: dict.fromkeys(NAMES, "222")}, said.append)
    assert refresh.after(made, 4, reports(1.0, 2.0, 3.0)) == dict.fromkeys(NAMES, "222") and not said
    assert refresh.after(made, 5, reports(1.0, 2.0, 3.0)) == dict.fromkeys(NAMES, "321")
    assert said == ["round 5: 4 heads were scored on its samples; 4 have other gates from now on"]
    assert refresh.after(made, 5, reports(3.0, 2.0, 1.0)) == dict.fromkeys(NAMES, "321")


def test_a_round_that_overflows_chooses_nothing(ready: Prepared, tmp_path: Path) -> None:
    """In fp16 a part of a head may have scores where the others' gradients are not finite: gates stay until the next
    time, and are then those of the plan in force."""
    made, said = refreshing(ready, [], [[8]], every=1), list[str]()
    task = training_task(ready, made, TRAINING, tmp_path, choose_gates=by_fisher, note=said.append)
    decisions = Decisions(task, made, [])
    metrics = RoundMetrics(round=0, loss=1.0, gradient_norm=None, learning_rate=1e-3, round_s=1.0)
    halted = replace(metrics, overflowed=("main",))
    assert decisions.added_to(halted, reports(1.0, 2.0, 3.0), []).gates == {g.subnet: g.operations for g in made.gates}
    assert decisions.plan == made and "gradients overflowed in the round that was to score" in said[0]
    found = decisions.added_to(replace(metrics, round=1), reports(1.0, 2.0, 3.0), [])
    assert found.gates == dict.fromkeys(NAMES, "321") and decisions.plan == regated(made, found.gates)
    assert not found.is_whole and metrics.is_whole


def test_gates_of_the_same_plan_count_and_moves_of_the_same_measurements() -> None:
    """After rounds 0 to 5: gates from `gates_from` on, moves from `moves_from` on, the newest last."""
    made = replace(fleets.PLAN, gates=(Gate(subnet="h", operations="1" * fleets.PLAN.micro_batches),))
    made = replace(made, refresh_gates_every_rounds=2)
    plain = RoundMetrics(round=0, loss=1.0, gradient_norm=None, learning_rate=1e-3, round_s=1.0)
    chosen = [{"h": str(1 + n % 3) * made.micro_batches} if n % 2 else {} for n in range(6)]
    rounds = [replace(plain, round=n, gates=gates) for n, gates in enumerate(chosen)]
    assert after_rounds(made, rounds).gates[0].operations[0] == "3"
    assert after_rounds(made, rounds[:4]).gates[0].operations[0] == "1"
    assert after_rounds(made, rounds[:2], moves_from=2).gates[0].operations[0] == "2"
    assert after_rounds(made, rounds[:2], gates_from=2) == made


def test_parts_of_a_head_add_up() -> None:
    """All scores are sums over weights; parts that were scored on other micro-batches are refused."""
    one = HeadScores(name="h", weight_magnitude=1.0, gradient_magnitude=2.0, fisher=(1.0, 4.0))
    other = HeadScores(name="h", weight_magnitude=3.0, gradient_magnitude=0.5, fisher=(2.0, 0.0))
    (found,) = summed_scores([one, other])
    assert found == HeadScores(name="h", weight_magnitude=4.0, gradient_magnitude=2.5, fisher=(3.0, 4.0))
    with pytest.raises(Refused, match="scores of h: one device has 2 micro-batches, another 1"):
        summed_scores([one, replace(other, fisher=(1.0,))])
    with pytest.raises(Refused, match="scores of h: score must be a finite number"):
        summed_scores([replace(one, fisher=(float("inf"), 1.0))])


def test_a_refresh_needs_gates() -> None:
    """A plan without them has nothing to choose anew."""
    with pytest.raises(Refused, match="refresh_gates_every_rounds needs gates, one lane"):
        replace(fleets.PLAN, refresh_gates_every_rounds=3)
