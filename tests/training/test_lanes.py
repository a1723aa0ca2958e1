"""Plans of several lanes train by their definitions: each is compared with a loop of plain PyTorch written apart."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleetune.clock import Clock
from fleetune.contracts.plan import LinkUse
from fleetune.contracts.run_config import Lora
from fleetune.data.prepared_data import PreparedData
from fleetune.errors import TryAgain
from fleetune.training import gradients
from tests.support.codecs.single_process import across_cut
from tests.support.training import plain_half
from tests.support.training.control_comparison import FP32, FP64, Comparison, beside_control, difference, whole_model
from tests.support.training.control_runs import WHOLE, cut_run
from tests.support.training.ends import assert_same_bits
from tests.support.training.gates import gates_of_bert, masked
from tests.support.training.lane_training import lane_models, train_by_blocks, train_federated, train_lane
from tests.support.training.lanes import (
    LORA,
    TRAINING,
    beside,
    by_blocks,
    control_by_blocks,
    parameters_of,
    ready_for,
    sized,
    split,
)
from tests.support.training.listeners import StopAfter
from tests.support.training.model_families import BY_NAME, data_request, model_request
from tests.support.training.plain_half import compute_in_half
from tests.support.training.runs import final_state, plan, prepared, run_plan, training_task
from tests.support.training.small_parts_worker import SmallPartsLauncher
from tests.support.training.unsplit_training import Control, Order, train_unsplit


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_a_round_of_blocks_is_one_step_with_each_blocks_gradient_from_its_device(
    lora: Lora | None, tmp_path: Path
) -> None:
    """LoLa-DEFT: backward passes end at the block, gradients go to the collector, which steps: all bits agree."""
    ready = ready_for(tmp_path, lora=lora)
    made = by_blocks(ready, [2])
    names = [parameters_of(ready, lane.segments[0].trains) for lane in made.lanes]
    found = beside(ready, tmp_path, made, control_by_blocks(ready, made, names))
    assert found.bitwise, found


def test_a_weight_that_blocks_share_learns_from_the_lower_blocks_device(tmp_path: Path) -> None:
    """GPT-2's embedding is its head: the device of the lower block trains both, by a gradient through all of it."""
    ready = ready_for(tmp_path, "gpt2")
    made = by_blocks(ready, [len(ready.units) // 2])
    lower, upper = (lane.segments[0] for lane in made.lanes)
    dealt = (
        replace(lower, trains=(*lower.trains, "lm_head")),
        replace(upper, trains=tuple(name for name in upper.trains if name != "lm_head")),
    )
    lanes = tuple(replace(lane, segments=(each,)) for lane, each in zip(made.lanes, dealt, strict=True))
    made = replace(made, lanes=lanes)
    names = [parameters_of(ready, lane.segments[0].trains) for lane in made.lanes]
    assert "transformer.wte.weight" in names[0] and sum(map(len, names)) == len(set.union(*names))
    found = beside(ready, tmp_path, made, control_by_blocks(ready, made, names))
    assert max(found.loss, found.tensor, found.logits) < FP32, found


def test_blocks_dealt_anew_are_trained_by_their_new_devices_and_a_resumed_training_repeats_it(tmp_path: Path) -> None:
    """d0 is slow until round 3, then d1: blocks change hands after rounds 1 and 5, with no state, and the gradient of
    a block is that of its new device's batch: all bits agree with the definition.

    A training that is stopped after round 4 goes on with the blocks as they were dealt.
    """
    ready = ready_for(tmp_path)
    made = replace(by_blocks(ready, [2]), replan_every_rounds=2)
    names = [parameters_of(ready, lane.segments[0].trains) for lane in made.lanes]

    def measured(round: int, busy: Mapping[str, float]) -> Mapping[str, float]:
        assert set(busy) == {"d0", "d1"}
        return {"d0": 9.0, "d1": 1.0} if round < 4 else {"d0": 1.0, "d1": 9.0}

    metrics = run_plan(ready, made, TRAINING, tmp_path / "whole", measured_busy=measured)
    first, second = (lane.segments[0].trains for lane in made.lanes)
    swap, back = {"block-0": second, "block-1": first}, {"block-0": first, "block-1": second}
    assert [r.moves for r in metrics.rounds] == [{}, swap, {}, {}, {}, back, {}]
    run = Control([r.loss for r in metrics.rounds], final_state(tmp_path / "whole"))
    whole = whole_model(ready)
    lanes = lane_models(ready, whole, made)
    control = train_by_blocks(lanes, whole, TRAINING, names, swapped=range(2, 6))
    assert difference(ready, run, control).bitwise
    stop = StopAfter(4)
    with pytest.raises(TryAgain, match="^ended after round 4 of 7, with a checkpoint of it"):
        run_plan(ready, made, TRAINING, tmp_path / "cut", measured_busy=measured, stop=stop, progress=stop.listen)
    again = run_plan(ready, made, TRAINING, tmp_path / "cut", measured_busy=measured)
    assert again.resumed_from_round == 4 and [r.moves for r in again.rounds] == [r.moves for r in metrics.rounds]
    assert_same_bits(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize("name", ["bert", "gpt2", "resnet"])
def test_one_client_and_one_helper_are_the_unsplit_model(name: str, tmp_path: Path) -> None:
    """Split learning of one client, averaged with itself after every 3 rounds, is the control in every bit.

    GPT-2's client holds its tied weight in both of its segments.
    """
    ready = ready_for(tmp_path, name)
    run = cut_run(ready, split(ready, "x"), TRAINING, tmp_path)
    found = beside_control(ready, run, TRAINING, WHOLE)
    assert found.bitwise or (name == "gpt2" and found.within(FP32)), found.found


@pytest.mark.parametrize(
    ("name", "fewer", "rounds"),
    [
        ("bert", {}, {}),
        ("resnet", {}, {}),
        ("resnet, clients' part frozen", {}, {}),
        ("bert", {"y": 1, "z": 2}, {}),
        ("bert", {}, {"y": 1, "z": 2}),
        ("resnet", {}, {"x": 2, "z": 1}),
    ],
)
def test_several_clients_are_fedavg_of_separately_trained_models(
    name: str, fewer: dict[str, int], rounds: dict[str, int], tmp_path: Path
) -> None:
    """Three clients of unequal data through one helper: parameters, moments and running statistics are averaged.

    Clients of fewer micro-batches a round, or fewer steps between averages, own fewer samples, and weigh less by as
    much; a client that rests computes and sends nothing.
    The forecast of an average's bytes is exact, and the round is measured without it.

    Bug: running statistics of a segment in which nothing is trained were those of the first client for ever.
    """
    family, _, frozen = name.partition(", ")
    ready = ready_for(tmp_path, family, precision="float64", **({"freeze": (r".*embedder\.",)} if frozen else {}))
    made = split(ready, "xyz", fewer=fewer, rounds=rounds)
    metrics = run_plan(ready, made, TRAINING, tmp_path)
    run = Control([r.loss for r in metrics.rounds], final_state(tmp_path))
    found = difference(ready, run, train_federated(lane_models(ready, whole_model(ready), made), TRAINING))
    assert max(found.loss, found.tensor, found.logits) < FP64, found
    rests = [tuple(n for n, steps in rounds.items() if round % 3 >= steps) for round in range(7)]
    assert [each.resting for each in metrics.rounds] == rests
    if name == "bert":  # without batch norms, whose statistics the forecast leaves out
        task = training_task(ready, made, TRAINING, tmp_path)
        forecast = Clock(task.fleet, sized(ready, task.profile)).forecast(made)
        said, measured = (
            sorted((row.device, row.action, row.bytes) for row in rows.average) for rows in (forecast, metrics)
        )
        assert said == measured and len(said) == 12
        assert {row.action[2:] for row in metrics.timeline}.isdisjoint({"0A0", "1A0", "2A0"})


def test_an_average_in_many_parts_is_the_average(tmp_path: Path) -> None:
    """Bug: with the first part of a tensor its lane got the largest count of steps, which the third part was then sent
    with, so that moments of lanes of fewer steps kept their bias from there on. Small models have one part."""
    ready = ready_for(tmp_path, precision="float64")
    made = split(ready, "xy", rounds={"y": 1})
    metrics = run_plan(ready, made, TRAINING, tmp_path, launcher=SmallPartsLauncher())
    run = Control([r.loss for r in metrics.rounds], final_state(tmp_path))
    found = difference(ready, run, train_federated(lane_models(ready, whole_model(ready), made), TRAINING))
    assert max(found.loss, found.tensor, found.logits) < FP64, found


def test_a_device_may_have_segments_that_come_back(tmp_path: Path) -> None:
    """A chain over a, b, a with an order for each is the unsplit model in every bit."""
    ready = ready_for(tmp_path)
    made = split(ready, "x", every=0)
    run = cut_run(ready, made, TRAINING, tmp_path)
    assert beside_control(ready, run, TRAINING, WHOLE).bitwise


def test_a_segment_may_train_only_its_last_units(tmp_path: Path) -> None:
    """Nothing below the first trained unit keeps a graph or changes, as in a model whose other parts are frozen."""
    family = BY_NAME["bert"]
    ready = ready_for(tmp_path / "all")
    chain = plan(ready.units, [], [[8]])
    last = replace(chain.lanes[0].segments[0], trains=ready.units[2:])
    metrics = run_plan(ready, replace(chain, lanes=(replace(chain.lanes[0], segments=(last,)),)), TRAINING, tmp_path)
    frozen = model_request(family, dropout=True, freeze=(r"bert\.embeddings", r"bert\.encoder\.layer\.0"))
    same = prepared(frozen, data_request(family, tmp_path / "some"), tmp_path / "some")
    assert ready.units[2:] == same.units[2:]
    run = Control([r.loss for r in metrics.rounds], final_state(tmp_path))
    assert beside_control(same, run, TRAINING, WHOLE).bitwise


CODED = {
    "int8": (("int8", 1.0), ("int8", 1.0)),
    "int4-hadamard back": (("dense", 1.0), ("int4-hadamard", 1.0)),
    "top-k": (("top-k", 8.0), ("forward-mask", 8.0)),
    "bf16": (("bf16", 1.0), ("fp16", 1.0)),
}


@pytest.mark.parametrize("name", CODED)
@pytest.mark.parametrize(
    ("shares", "mixed"),
    [([[8], [8]], None), ([[3, 5], [8]], None), ([[8], [8]], "bf16"), ([[8], [8]], "fp16")],
    ids=["alone", "group", "mixed precision", "scaled loss"],
)
def test_codecs_on_links_equal_one_process_with_the_same_codec_at_the_cut(
    name: str, shares: list[list[int]], mixed: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every link has its codec; samples decode alike however a group deals them, and as bfloat16 or float16 where
    that crosses; gradients that overflow do so on both sides of the cut."""
    for module in (gradients, plain_half):
        monkeypatch.setattr(module, "FIRST_SCALE", 2.0**24)
    ready = ready_for(tmp_path, mixed_precision=mixed)
    training = replace(TRAINING, weight_decay_on="all")  # as plain AdamW
    (there, there_ratio), (back, back_ratio) = CODED[name]
    made = plan(ready.units, [2], shares)
    pairs = [(a, made.lanes[0].segments[1].devices[0]) for a in made.lanes[0].segments[0].devices]
    forward = [LinkUse(source=a, target=b, codec=there, ratio=there_ratio) for a, b in pairs]
    backward = [LinkUse(source=b, target=a, codec=back, ratio=back_ratio) for a, b in pairs]
    metrics = run_plan(ready, replace(made, links=(*forward, *backward)), training, tmp_path)
    run = Control([r.loss for r in metrics.rounds], final_state(tmp_path))
    assert bool(metrics.rounds[0].overflowed) == (mixed == "fp16")

    def crossed(module: Any, given: Any, output: Any) -> Any:
        first = output[0] if isinstance(output, tuple) else output
        coded = across_cut(first, forward[0], backward[0])
        return (coded, *output[1:]) if isinstance(output, tuple) else coded

    def control(order: Order) -> Control:
        whole = whole_model(ready) if mixed is None else compute_in_half(whole_model(ready), mixed)
        whole.get_submodule(ready.units[1]).register_forward_hook(crossed)
        return train_unsplit(whole, PreparedData(ready.folders.data), training, ready.seed, ready.units, order)

    usual = control(Order(WHOLE))
    reordered = Order(WHOLE, micro_batches=True)
    found = Comparison(difference(ready, run, usual), lambda: difference(ready, control(reordered), usual))
    assert found.bitwise if len(shares[0]) == 1 else found.within(FP32), (found.found, found.floor())
    sent = {(link.source, link.target): link.bytes for link in metrics.link_bytes}
    assert sum(sent[a, b] for a, b in pairs) < 24 * 24 * 32 * 4 or there == "dense"


@pytest.mark.parametrize("kind", ["collector", "clients", "a client rests"])
def test_a_stopped_training_of_lanes_loses_no_committed_round(kind: str, tmp_path: Path) -> None:
    """Stopped after round 4 of 7, when clients that average every 3 rounds differ, it goes on to the same weights.

    Optimizer state is the collector's, or each lane's own.
    """
    ready = ready_for(tmp_path)
    rests = {"y": 1} if kind == "a client rests" else {}
    made = by_blocks(ready, [2]) if kind == "collector" else split(ready, "xy", rounds=rests)
    training = replace(TRAINING, checkpoint_every_rounds=99)
    run_plan(ready, made, training, tmp_path / "whole")
    stop = StopAfter(4)
    with pytest.raises(TryAgain, match="^ended after round 4 of 7, with a checkpoint of it"):
        run_plan(ready, made, training, tmp_path / "cut", stop=stop, progress=stop.listen)
    assert run_plan(ready, made, training, tmp_path / "cut").resumed_from_round == 4
    assert_same_bits(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize("cuts", [[], [2]], ids=["one device", "two segments"])
def test_gates_are_the_same_model_with_masked_heads_and_detached_contributions(cuts: list[int], tmp_path: Path) -> None:
    """D2FT: heads in full, forward only or skipped by micro-batch, in a pipeline too."""
    family = BY_NAME["bert"]
    model = model_request(family, dropout=False, precision="float64")
    ready = prepared(model, data_request(family, tmp_path), tmp_path)
    chain = plan(ready.units, cuts, [[8]] * (len(cuts) + 1))
    found = beside(ready, tmp_path, replace(chain, gates=gates_of_bert()), train_lane(masked(ready, chain), TRAINING))
    assert max(found.loss, found.tensor, found.logits) < FP64, found
