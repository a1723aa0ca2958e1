"""Mixed precision: a partitioned model that computes in bfloat16 trains like the unsplit one in plain PyTorch.

The plain loop (`plain_half`) casts float32 parameters to bfloat16 in each forward, and sums gradients and steps in
float32. All bits agree where a cut changes no addition. Where it does (gradients of what several operations behind the
cut read, and of shared weights) the sums are rounded to bfloat16, whose step is 2^-8: results agree within BF16. Shards
of a micro-batch round their gradients one by one, as a plain loop over the same shards does.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fleetune.contracts import json_io
from fleetune.contracts.metrics import TrainingMetrics
from fleetune.contracts.run_config import DataRequest, Lora, ModelRequest
from fleetune.errors import Refused
from fleetune.training import gradients
from tests.support.data.chat_samples import CHATML, chats
from tests.support.data.samples import json_lines
from tests.support.training import plain_half
from tests.support.training.control_comparison import FP32, beside_control, whole_model
from tests.support.training.control_runs import UNEVEN, compared, cut_run, request
from tests.support.training.gates import gates_of_bert, masked
from tests.support.training.lane_training import lane_models, train_federated, train_lane
from tests.support.training.lanes import TRAINING, beside, by_blocks, control_by_blocks, parameters_of, split
from tests.support.training.model_families import BY_NAME, FAMILIES, QWEN3, data_request, model_request
from tests.support.training.runs import Prepared, final_state, plan, prepared, run_plan

BF16, FP16 = 5e-3, 1e-3
"""Relative; 2.7e-3 was measured after four rounds of AdamW (Llama), 9e-4 for shards."""
TOO_MUCH = 2.0**24
LORA = Lora(r=4, alpha=8, dropout=0.1, targets=("q_proj", "v_proj"))


def ready_for(name: str, folder: Path, mixed_precision: str = "bf16", **changes: object) -> Prepared:
    """Prepare a family in mixed precision."""
    family = BY_NAME[name]
    model = model_request(family, dropout=True, mixed_precision=mixed_precision, **changes)
    return prepared(model, data_request(family, folder), folder)


def chats_ready(folder: Path, mixed_precision: str = "bf16", **changes: object) -> Prepared:
    """Prepare a tiny Qwen3 and chats in mixed precision."""
    (folder / "chat.jinja").write_text(CHATML)
    source = json_lines(folder / "chats.jsonl", chats(300))
    data = DataRequest(source=str(source), max_length=128, chat_template=str(folder / "chat.jinja"))
    return prepared(
        ModelRequest(task="causal-lm", config=QWEN3, mixed_precision=mixed_precision, **changes), data, folder
    )


@pytest.mark.parametrize("name", [f.name for f in FAMILIES])
def test_a_pipeline_computes_in_bfloat16_as_the_unsplit_model(name: str, tmp_path: Path) -> None:
    """A model cut in the middle agrees in every bit with the plain loop.

    GPT-2's shared weight, and the gradients of what several operations behind a cut of Llama read, are added up in
    another order.
    """
    ready = ready_for(name, tmp_path)
    found = compared(ready, [len(ready.units) // 2], [[8], [8]], request(rounds=4, clip_norm=0.5), tmp_path)
    assert found.bitwise or (name in ("gpt2", "llama") and found.within(BF16)), found.found


def test_cuts_inside_blocks_change_rounding_alone(tmp_path: Path) -> None:
    """A Qwen3 that is cut inside both of its blocks, with adapters on a frozen base, agrees within the rounding of
    bfloat16.
    """
    ready = chats_ready(tmp_path, granularity="layer", lora=LORA)
    cuts = [next(k for k, unit in enumerate(ready.units) if part in unit) for part in ("0.self_attn.v", "1.mlp.up")]
    found = compared(ready, cuts, [[8], [8], [8]], request(rounds=3, learning_rate=1e-2), tmp_path)
    assert found.within(BF16), found.found


@pytest.mark.parametrize("mixed", ["bf16", "fp16"])
def test_shards_round_their_gradients_one_by_one(mixed: str, tmp_path: Path) -> None:
    """A round of 3 + 5 samples on the two devices of both segments agrees with a plain loop over the same shards but
    for the order of float32 sums.
    """
    ready = chats_ready(tmp_path, mixed)
    training = request(rounds=1, optimizer="sgd", learning_rate=1e-1)
    run = cut_run(ready, plan(ready.units, [len(ready.units) // 2], [[3, 5], [3, 5]]), training, tmp_path)
    found = beside_control(ready, run, training, UNEVEN).found
    assert max(found.loss, found.tensor) < FP32, found


def test_groups_that_share_samples_train_as_the_unsplit_model(tmp_path: Path) -> None:
    """Adapters with dropout on 3 + 5 samples, then on 8, agree with whole micro-batches within the rounding of
    bfloat16.
    """
    ready = chats_ready(tmp_path, lora=LORA)
    training = request(rounds=3, optimizer="sgd", learning_rate=1e-1)
    found = compared(ready, [len(ready.units) // 2], [[3, 5], [8]], training, tmp_path)
    assert found.within(BF16), found.found


def test_blocks_of_a_collector_compute_with_what_it_hands_out(tmp_path: Path) -> None:
    """LoLa-DEFT: a device trains one block and computes with the others as the collector left them, to the bit."""
    ready = ready_for("bert", tmp_path)
    made = by_blocks(ready, [2])
    names = [parameters_of(ready, lane.segments[0].trains) for lane in made.lanes]
    found = beside(ready, tmp_path, made, control_by_blocks(ready, made, names))
    assert found.bitwise, found


@pytest.mark.parametrize("shares", [[[8]], [[5, 3]]], ids=["one device", "group"])
def test_gated_heads_train_the_masters(shares: list[list[int]], tmp_path: Path) -> None:
    """D2FT: gradients of gathered weights reach the float32 masters, as those of masked heads do in a plain loop.

    Where they did not, such a weight would not move at all, and the loss fall by the others.
    """
    family = BY_NAME["bert"]
    model = model_request(family, dropout=False, mixed_precision="bf16")
    ready = prepared(model, data_request(family, tmp_path), tmp_path)
    gated = replace(plan(ready.units, [], shares), gates=gates_of_bert())
    run = cut_run(ready, gated, TRAINING, tmp_path)
    control, start = train_lane(masked(ready, gated), TRAINING), whole_model(ready).state_dict()
    weights = [name for name in control.state if "layer." in name and name.endswith(("dense.weight", "query.weight"))]
    assert len(weights) == 8
    for name in weights:
        moved = float((control.state[name] - start[name]).norm())
        assert float((run.state[name] - control.state[name]).norm()) < 0.2 * moved, name


def test_averaged_weights_are_computed_with(tmp_path: Path) -> None:
    """Split learning of two clients, averaged after each round, is FedAvg of separately trained models."""
    ready = ready_for("bert", tmp_path)
    made = split(ready, "xy", every=1)
    found = beside(ready, tmp_path, made, train_federated(lane_models(ready, whole_model(ready), made), TRAINING))
    assert max(found.loss, found.tensor, found.logits) < BF16, found


def test_masters_are_saved_and_half_the_bytes_cross(tmp_path: Path) -> None:
    """Checkpoints hold float32, which bfloat16 cannot hold; values and gradients take half the bytes of float32."""
    crossed = {}
    for mixed in (None, "bf16"):
        folder = tmp_path / str(mixed)
        family = BY_NAME["bert"]
        model = model_request(family, dropout=True, mixed_precision=mixed)
        ready = prepared(model, data_request(family, folder), folder)
        made = plan(ready.units, [len(ready.units) // 2], [[8], [8]])
        metrics = run_plan(ready, made, request(rounds=2), folder)
        crossed[mixed] = sum(row.bytes for row in metrics.timeline if ">" in row.device)
    assert crossed["bf16"] == crossed[None] / 2
    state = final_state(tmp_path / "bf16")
    trained = [name for name, p in whole_model(ready).named_parameters() if p.requires_grad]
    assert all(state[name].dtype == torch.float32 for name in trained)
    assert any(not torch.equal(state[name], state[name].bfloat16().float()) for name in trained)


@pytest.mark.parametrize("name", ["bert", "llama", "mobilenet_v2"])
def test_a_pipeline_computes_in_float16_as_the_unsplit_model(name: str, tmp_path: Path) -> None:
    """A model cut in the middle agrees with a plain loop that scales its loss by torch's GradScaler."""
    ready = ready_for(name, tmp_path, "fp16")
    found = compared(ready, [len(ready.units) // 2], [[8], [8]], request(rounds=4, clip_norm=0.5), tmp_path)
    assert found.bitwise or (name == "llama" and found.within(FP16)), found.found


def test_a_round_that_overflows_takes_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss is scaled by far too much at first. Rounds are committed without a step, at half of the scale each,
    until gradients are finite; weights, moments and all are those of a plain loop with GradScaler. A training that is
    interrupted in between goes on with the scale that it had.
    """
    monkeypatch.setattr(gradients, "FIRST_SCALE", TOO_MUCH)
    monkeypatch.setattr(plain_half, "FIRST_SCALE", TOO_MUCH)
    ready = ready_for("bert", tmp_path, "fp16")
    told: list[str] = []
    made = plan(ready.units, [len(ready.units) // 2], [[8], [8]])
    training = request(rounds=12, clip_norm=0.5)

    def interrupt(label: str, done: float, total: float, unit: str, detail: str) -> None:
        if detail.startswith("round 3 of"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_plan(ready, made, replace(training, checkpoint_every_rounds=2), tmp_path, progress=interrupt)
    run = cut_run(ready, made, replace(training, checkpoint_every_rounds=2), tmp_path, note=told.append)
    found = beside_control(ready, run, training, [(0, 8)])
    assert found.bitwise, found.found
    rounds = json_io.read(TrainingMetrics, tmp_path / "output" / "metrics" / "training.json").rounds
    overflowed = [each.round for each in rounds if each.overflowed]
    assert overflowed and overflowed[0] == 0 and overflowed[-1] < len(rounds) - 2, overflowed
    assert [each.loss_scale for each in rounds[:3]] == [TOO_MUCH, TOO_MUCH / 2, TOO_MUCH / 4]
    assert all(each.gradient_norm is None for each in rounds if each.overflowed)
    assert any("overflow in fp16" in sentence for sentence in told)


def test_gradients_that_no_scale_makes_finite_end_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss that is scaled no more and still overflows is told with what to do, and nothing runs for ever."""
    monkeypatch.setattr(gradients, "FIRST_SCALE", 1.0)
    ready = ready_for("bert", tmp_path, "fp16")
    made = plan(ready.units, [len(ready.units) // 2], [[8], [8]])
    training = request(rounds=40, optimizer="sgd", learning_rate=3e3)
    with pytest.raises(Refused, match="bf16"):
        run_plan(ready, made, training, tmp_path)


def test_a_collector_takes_no_step_with_gradients_that_overflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sum is one: lanes step together or not at all."""
    monkeypatch.setattr(gradients, "FIRST_SCALE", TOO_MUCH)
    ready = ready_for("bert", tmp_path, "fp16")
    made = by_blocks(ready, [2])
    metrics = run_plan(ready, made, replace(TRAINING, rounds=10), tmp_path)
    lanes = tuple(lane.name for lane in made.lanes)
    assert {each.overflowed for each in metrics.rounds} == {(), lanes}
    assert metrics.rounds[-1].loss < metrics.rounds[0].loss
