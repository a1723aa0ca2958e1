"""The control set: cut into segments and shards, in separate processes over encrypted links, a model trains as the
unsplit one does in plain PyTorch. 20 rounds; bitwise where additions keep their order, else 1e-5 (fp32), 1e-10 (fp64).
"""

from pathlib import Path

import pytest

from fleetune.contracts.config.model import Lora
from fleetune.contracts.config.training import TrainingRequest
from fleetune.data import PreparedData
from tests.training.compare import Difference, difference, whole_model
from tests.training.families import BY_NAME, FAMILIES, MINILM, Family, data_request, model_request
from tests.training.reference import train_unsplit
from tests.training.runs import Prepared, final_state, plan, prepared, run_plan

WHOLE = [(0, 8)]
UNEVEN = [(0, 3), (3, 8)]
FP32, FP64 = 1e-5, 1e-10
TIED = {"gpt2"}  # its embedding is its head: their gradients are added in another order than autograd's


def compared(
    ready: Prepared, cuts: list[int], shares: list[list[int]], training: TrainingRequest, folder: Path
) -> Difference:
    """Train both ways and compare. Batch norms of the control see the shards that the plan makes."""
    shards = UNEVEN if all(s == [3, 5] for s in shares) and has_batch_norm(ready) else WHOLE
    control = train_unsplit(
        whole_model(ready), PreparedData(ready.folders.data), training, ready.seed, ready.units, shards
    )
    metrics = run_plan(ready, plan(ready.units, cuts, shares), training, folder)
    return difference(ready, metrics, final_state(folder), control)


def has_batch_norm(ready: Prepared) -> bool:
    """Whether the model keeps running statistics."""
    return any("running_mean" in name for name, _ in whole_model(ready).named_buffers())


def request(**changes: object) -> TrainingRequest:
    """20 rounds of 3 micro-batches of 8."""
    settings = {"rounds": 20, "batch_samples": 24, "micro_batch_samples": 8, "learning_rate": 1e-3, **changes}
    return TrainingRequest(**settings)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("family", (*FAMILIES, MINILM), ids=lambda f: f.name)
def test_a_pipeline_trains_bit_by_bit_as_the_unsplit_model(family: Family, tmp_path: Path) -> None:
    """Cut in the middle, with the family's own dropout and AdamW, nothing changes in any bit (tied weights: 1e-5)."""
    ready = prepared(model_request(family, dropout=True), data_request(family, tmp_path), tmp_path)
    found = compared(ready, [len(ready.units) // 2], [[8], [8]], request(schedule="linear"), tmp_path)
    assert found.bitwise or (family.name in TIED | {"llama"} and max(found.loss, found.logits, found.tensor) < FP32), (
        found
    )


@pytest.mark.slow
@pytest.mark.parametrize("family", [f for f in (*FAMILIES, MINILM) if not f.batch_norm], ids=lambda f: f.name)
def test_uneven_groups_in_a_pipeline_train_as_the_unsplit_model(family: Family, tmp_path: Path) -> None:
    """3 + 5 samples on two devices, then 8 on one, with padding, dropout and clipping: within 1e-5."""
    ready = prepared(model_request(family, dropout=True), data_request(family, tmp_path), tmp_path)
    found = compared(ready, [len(ready.units) // 2], [[3, 5], [8]], request(clip_norm=0.5), tmp_path)
    assert max(found.loss, found.logits, found.tensor) < FP32, found


@pytest.mark.slow
@pytest.mark.parametrize("family", [f for f in FAMILIES if f.batch_norm], ids=lambda f: f.name)
def test_batch_norm_families_train_as_the_unsplit_model_on_the_same_shards(family: Family, tmp_path: Path) -> None:
    """Both segments on 3 + 5 samples: statistics per shard, means of them after each round: within 1e-10 in fp64."""
    ready = prepared(
        model_request(family, dropout=False, precision="float64"), data_request(family, tmp_path), tmp_path
    )
    training = request(optimizer="sgd", momentum=0.9, clip_norm=0.5)
    found = compared(ready, [len(ready.units) // 2], [[3, 5], [3, 5]], training, tmp_path)
    assert max(found.loss, found.logits, found.tensor) < FP64, found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_adapters_train_as_in_the_unsplit_model(name: str, tmp_path: Path) -> None:
    """LoRA with its dropout on uneven groups and three segments, the base frozen: within 1e-10 in fp64."""
    targets = {"bert": ("query", "value"), "gpt2": ("c_attn",), "llama": ("q_proj", "v_proj")}[name]
    lora = Lora(r=4, alpha=8, dropout=0.1, targets=targets)
    family = BY_NAME[name]
    model = model_request(family, dropout=True, lora=lora, precision="float64")
    ready = prepared(model, data_request(family, tmp_path), tmp_path)
    cuts = [len(ready.units) // 2, len(ready.units) - 1]
    found = compared(ready, cuts, [[5, 3], [8], [8]], request(learning_rate=1e-2), tmp_path)
    assert max(found.loss, found.logits, found.tensor) < FP64, found


@pytest.mark.slow
def test_tied_weights_move_together_in_groups_on_both_ends(tmp_path: Path) -> None:
    """GPT-2's embedding and head in two segments of two devices each, clipped by global norm: within 1e-10 in fp64."""
    family = BY_NAME["gpt2"]
    ready = prepared(model_request(family, dropout=True, precision="float64"), data_request(family, tmp_path), tmp_path)
    found = compared(ready, [len(ready.units) // 2], [[3, 5], [6, 2]], request(clip_norm=0.3), tmp_path)
    assert max(found.loss, found.logits, found.tensor) < FP64, found


@pytest.mark.slow
def test_frozen_units_need_no_backward(tmp_path: Path) -> None:
    """With the first segment wholly frozen it sends no gradient, and the rest trains bit by bit as unsplit."""
    family = BY_NAME["bert"]
    model = model_request(family, dropout=True, freeze=(r"bert\.embeddings", r"bert\.encoder\.layer\.0"))
    ready = prepared(model, data_request(family, tmp_path), tmp_path)
    found = compared(ready, [2], [[8], [8]], request(), tmp_path)
    assert found.bitwise, found
