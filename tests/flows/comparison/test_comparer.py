"""A comparison: which runs it makes, and what becomes of strategies that fail."""

from dataclasses import replace
from typing import Any

import pytest

from fleetune.contracts.plan import Lane
from fleetune.errors import Infeasible, Refused, TryAgain
from fleetune.store import Store
from flows.comparison import archive
from flows.comparison.comparer import Comparer, CompareRequest
from flows.comparison.pages import notes, verdict
from flows.context import RunContext
from flows.form import RunRequest, config_of
from tests.support.clock import fleets
from tests.support.flows.comparison.comparisons import compared
from tests.support.flows.comparison.stand_in import StandIn, other_fleet


def test_every_strategy_is_planned_on_one_fleet(store: Store, pipeline: StandIn) -> None:
    """The fleet is measured once; each strategy is a run that takes it from the store and ends after its plan."""
    found = compared(pipeline, "single", "dp", rounds=7)
    assert [selection.until for _, selection, _ in pipeline.asked] == ["profile", "plan", "plan"]
    assert {selection.kind for _, selection, _ in pipeline.asked} == {"comparison"}
    assert [selection.kept for _, selection, _ in pipeline.asked] == [(), ("discover",), ("discover",)]
    assert {config.training.rounds for _, _, config in pipeline.asked} == {7}
    assert [row.name for row in found.by_forecast] == ["dp", "single"], "2 s a round before 4 s"
    assert [row.run for row in found.strategies] == ["demo-2", "demo-3"] and found.measured_by == "demo-1"
    assert found.target_loss is None and all(row.state == "planned" for row in found.strategies)
    single = found.strategies[0].forecast
    assert single is not None and (single.round_s, single.link_bytes) == (4.0, 2000)
    assert archive.load(store, found.id) == found, "it outlives the process"


def test_training_is_measured(store: Store, pipeline: StandIn) -> None:
    """With `train` every plan comes first; then each is trained, and the earliest at the common loss is told."""
    pipeline.losses = {"single": [3.0, 2.0, 1.0], "dp": [3.0, 2.5, 2.0]}
    found = compared(pipeline, "single", "dp", train=True)
    assert [(name, selection.until) for name, selection, _ in pipeline.asked[1:]] == [
        ("single", "plan"),
        ("dp", "plan"),
        ("single", None),
        ("dp", None),
    ]
    rows = {row.name: row for row in found.strategies}
    assert found.target_loss == 2.5, "the mean of dp's three rounds, the higher of both lowest"
    assert rows["dp"].target_s == pytest.approx(3 * 2.5) and rows["single"].target_s == pytest.approx(3 * 5.0)
    assert [row.name for row in found.by_target] == ["dp", "single"]
    measured = rows["dp"].measured
    assert measured is not None and (measured.round_s, measured.link_bytes) == (2.5, 2200)
    assert rows["dp"].score is not None and rows["dp"].score.after == 0.7


def test_equal_plans_are_measured_once(store: Store, pipeline: StandIn) -> None:
    """Strategies whose plans and forecasts are the same are trained once, and have one run and the same figures; the
    answer names them together and no winner among them. (Strategies without a time of their own need 1 s a round.)"""
    found = compared(pipeline, "asteroid", "dp", "fusionllm", train=True)
    assert [name for name, selection, _ in pipeline.asked if selection.until is None] == ["asteroid", "dp"]
    first, _, twin = found.strategies
    assert (first.same_as, twin.same_as, twin.name) == ("", "asteroid", "fusionllm")
    assert (twin.run, twin.measured, twin.state) == (first.run, first.measured, "trained")
    said = verdict(found)
    assert (
        "By the clock asteroid and fusionllm have the same plan, and it is the fastest (1 s a round, 2.00 times" in said
    )
    assert "Measured, asteroid and fusionllm have the same plan" in said and "fusionllm is the fastest" not in said
    assert [note for note in notes(found) if note.startswith("fusionllm: its plan is that of asteroid")]


def test_a_target_that_is_not_reached(store: Store, pipeline: StandIn) -> None:
    """A target that somebody gave is kept, and a strategy that does not reach it has no time for it."""
    pipeline.losses = {"single": [3.0, 1.0], "dp": [3.0, 3.0]}
    found = compared(pipeline, "single", "dp", train=True, target_loss=2.0)
    assert found.target_loss == 2.0 and [row.target_s is None for row in found.strategies] == [False, True]


def test_one_failure_does_not_end_the_others(store: Store, pipeline: StandIn) -> None:
    """Whether a strategy is infeasible, refused before it begins, or fails in training, the next one is run."""
    pipeline.errors = {
        ("single", "plan"): Infeasible("device a lacks 5 bytes"),
        ("dp", "train"): TryAgain("device b is gone"),
    }
    pipeline.before_it_begins = {"lola-deft": Refused("no unit of the model is trained")}
    found = compared(pipeline, "single", "lola-deft", "dp", "pp", train=True)
    rows = {row.name: row for row in found.strategies}
    assert {name: row.state for name, row in rows.items()} == {
        "single": "infeasible",
        "lola-deft": "refused",
        "dp": "failed",
        "pp": "trained",
    }
    assert rows["single"].why == "device a lacks 5 bytes" and rows["single"].run == "demo-2"
    assert rows["lola-deft"].run == "" and rows["dp"].why == "device b is gone"
    assert rows["dp"].forecast is not None, "its plan is still told"


def test_a_plan_that_cannot_be_trained_is_not(store: Store, pipeline: StandIn) -> None:
    """A plan of lanes that nothing brings together is compared by the clock, named, and never given to training."""
    second = Lane(name="second", segments=fleets.PLAN.lanes[0].segments)
    pipeline.plans = {"split-learning": replace(fleets.PLAN, lanes=(*fleets.PLAN.lanes, second))}
    found = compared(pipeline, "split-learning", "dp", train=True)
    row = found.strategies[0]
    assert row.state == "planned" and row.forecast is not None and row.measured is None
    assert "2 lanes that nothing brings together" in row.why
    assert row.samples == 2 * found.strategies[1].samples, "each lane has micro-batches of its own"
    assert [name for name, selection, _ in pipeline.asked if selection.until is None] == ["dp"]


def test_heads_are_scored_for_those_who_need_it(store: Store, pipeline: StandIn) -> None:
    """A strategy that selects by scores is run with them; the others, and the measuring run, without."""
    compared(pipeline, "d2ft", "dp")
    assert [config.profile.scores for _, _, config in pipeline.asked] == [False, True, False]


def test_who_needs_most_measures_for_all(store: Store, pipeline: StandIn) -> None:
    """The measuring run times what any of the strategies needs, whose runs then find their times; they ask as ever."""
    compared(pipeline, "d2ft", "dp", "fusionllm-top-k", "lola-deft")
    asked = [(each.profile.scores, each.profile.codecs, each.profile.partial) for _, _, each in pipeline.asked]
    alone = [(True, False, False), (False, False, False), (False, True, False), (False, False, True)]
    assert asked == [(False, True, True), *alone]


def test_what_one_needs_and_cannot_have_ends_no_comparison(pipeline: StandIn) -> None:
    """If the times that one strategy needs are refused, the rest is measured without them, and that one keeps why."""
    whole = pipeline.run_with

    def refusing(context: Any, config: Any, selection: Any) -> Any:
        if config.profile.codecs:
            raise Refused("profile: values of 4 and of 8 bytes an element")
        return whole(context, config, selection)

    found = compared(pipeline, "dp", "fusionllm-top-k", run_with=refusing)
    assert [row.state for row in found.strategies] == ["planned", "refused"]


def test_a_comparison_promotes_nothing(store: Store, pipeline: StandIn) -> None:
    """Of a config that promotes its model, no strategy is promoted: the next one would start from its model."""
    assert config_of(RunRequest(base="nightly"), store)[0].promote is not None
    compared(pipeline, "single", "dp", base="nightly", train=True)
    assert [config.promote for _, _, config in pipeline.asked] == [None] * 5


def test_a_fleet_that_changes_meanwhile(pipeline: StandIn) -> None:
    """Another run measures the fleet again in between: the strategy planned on that one is not compared."""
    whole = pipeline.run_with

    def measured_again(*given: Any) -> Any:
        pipeline.fleet = other_fleet() if len(pipeline.asked) == 2 else fleets.FLEET
        return whole(*given)

    found = compared(pipeline, "single", "dp", run_with=measured_again)
    assert [row.state for row in found.strategies] == ["planned", "failed"]
    assert found.strategies[1].forecast is None and "measured the fleet again" in found.strategies[1].why


@pytest.mark.parametrize(
    ("errors", "kind"),
    [
        ({"single": Infeasible("too small"), "dp": Refused("not so")}, Infeasible),
        ({"single": Infeasible("too small"), "dp": TryAgain("busy")}, TryAgain),
        ({"single": Refused("no"), "dp": Refused("not so")}, Refused),
    ],
)
def test_no_plan_at_all(store: Store, pipeline: StandIn, errors: dict[str, Any], kind: type[Exception]) -> None:
    """Without any plan the comparison fails with every reason, is stored nevertheless, and tells if a retry helps."""
    pipeline.errors = {(name, "plan"): error for name, error in errors.items()}
    with pytest.raises(kind) as failed:
        compared(pipeline, "single", "dp")
    assert all(str(error) in str(failed.value) for error in errors.values())
    assert len(archive.every(store)) == 1


def test_one_reason_is_said_once(pipeline: StandIn) -> None:
    """Bug: the same sentence stood there once for each strategy."""
    pipeline.errors = {(name, "plan"): Refused("no layer is trained") for name in ("single", "dp", "pp")}
    with pytest.raises(Refused, match=r"^no strategy has a plan: single, dp and pp: no layer is trained$"):
        compared(pipeline, "single", "dp", "pp")


def test_a_fleet_that_cannot_be_measured_ends_it(store: Store, pipeline: StandIn) -> None:
    """An error of the measuring run is the comparison's: no strategy can be planned."""
    pipeline.errors = {("single", "discover"): TryAgain("device b does not answer")}
    with pytest.raises(TryAgain, match="device b does not answer"):
        compared(pipeline, "single", "dp")
    assert len(pipeline.asked) == 1


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"strategies": ("astroid",)}, ("astroid", "asteroid", "single")),
        ({"strategies": ()}, ("none is given", "asteroid")),
        ({"strategies": ("dp", "dp")}, ("dp", "twice")),
        ({"strategies": ("dp",), "base": "nothing"}, ("base", "nothing")),
        ({"strategies": ("dp",), "changes": ("strategy.name=pp",)}, ("strategy.name=pp", "strategies")),
        ({"strategies": ("dp",), "changes": ("training.rouns=3",)}, ("rouns", "rounds")),
        ({"strategies": ("dp",), "target_loss": -1.0}, ("target_loss", "-1")),
        ({"strategies": ("dp",), "base": "asteroid-b", "train": True}, ("nx-0", "simulated", "without train")),
    ],
)
def test_a_refusal_comes_before_anything_runs(
    store: Store, pipeline: StandIn, values: dict[str, Any], said: tuple[str, ...]
) -> None:
    """What cannot be compared is refused by name with what is allowed, and nothing has begun."""
    with pytest.raises(Refused) as refused:
        Comparer(RunContext(store=store), CompareRequest(**{"base": "demo", **values}))
    assert all(word in str(refused.value) for word in said), str(refused.value)
    assert not pipeline.asked


def test_a_damaged_artifact_is_that_strategys(store: Store, pipeline: StandIn) -> None:
    """A plan whose file is gone makes one row fail, by name."""
    put = pipeline.put

    def without_forecast(kind: str, files: dict[str, Any]) -> str:
        left_out = kind == "plan" and len(pipeline.asked) == 2
        return put(kind, {name: made for name, made in files.items() if not (left_out and name == "forecast.json")})

    pipeline.put = without_forecast  # type: ignore[method-assign]
    found = compared(pipeline, "single", "dp")
    assert [row.state for row in found.strategies] == ["failed", "planned"]
    assert "forecast.json" in found.strategies[0].why


def test_the_form_is_the_run_of_each_strategy(store: Store) -> None:
    """A strategy's run has the config that the form of `finetune` makes of the same values."""
    request = CompareRequest(base="demo", strategies=("dp",), model="minilm-lora", changes=("training.clip_norm=2.0",))
    asked = RunRequest(base="demo", strategy="dp", model="minilm-lora", changes=("training.clip_norm=2.0",))
    assert config_of(request.run_of("dp"), store) == config_of(asked, store)
