"""A model that is cut over workers on a GPU, or over a GPU and CPUs, trains like the unsplit one.

The control is the loop of plain PyTorch of the other controls, on the GPU. Where the same kernels run on the same
shapes all bits agree; else results agree within the control's own rounding, measured on the same GPU.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fleetune.contracts.plan import Plan
from fleetune.contracts.run_config import DataRequest, Lora
from fleetune.errors import Infeasible
from fleetune.planning.recompute import everywhere
from fleetune.planning.revision import Reviser
from fleetune.planning.strategy import Problem
from tests.support.training.control_comparison import FP32, FP64, Comparison, beside_control
from tests.support.training.control_runs import WHOLE, cut_run, request
from tests.support.training.lanes import TRAINING, by_blocks, split
from tests.support.training.listeners import killing
from tests.support.training.model_families import BY_NAME, data_request, model_request
from tests.support.training.quantized_base import chats_ready
from tests.support.training.recording import Recording
from tests.support.training.runs import Prepared, final_state, plan, prepared, run_plan, training_task

GPU = "cuda:0"
HALF = 5e-3
"""As in tests/training/test_mixed_precision.py."""


def everywhere_on_gpu(made: Plan) -> dict[str, str]:
    """Return the accelerators of a plan whose devices all compute on one GPU."""
    return dict.fromkeys(made.devices, GPU)


def ready_for(name: str, folder: Path, dropout: bool = True, **changes: object) -> Prepared:
    """Prepare a family."""
    family = BY_NAME[name]
    return prepared(model_request(family, dropout=dropout, **changes), data_request(family, folder), folder)


def compared(ready: Prepared, made: Plan, accelerators: dict[str, str], folder: Path, **changes: object) -> Comparison:
    """Train some rounds both ways and compare."""
    training = request(**{"rounds": 6, "clip_norm": 0.5, **changes})
    run = cut_run(ready, made, training, folder, accelerators=accelerators)
    return beside_control(ready, run, training, WHOLE, GPU)


@pytest.mark.parametrize("name", ["bert", "vit", "llama", "gpt2", "resnet"])
def test_a_pipeline_on_a_gpu_trains_as_the_unsplit_model(name: str, tmp_path: Path) -> None:
    """Cut in the middle, with dropout, AdamW and clipping."""
    ready = ready_for(name, tmp_path)
    made = plan(ready.units, [len(ready.units) // 2], [[8], [8]])
    found = compared(ready, made, everywhere_on_gpu(made), tmp_path, weight_decay=0.1)
    assert found.bitwise or found.within(FP32), (found.found, found.floor())


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_uneven_groups_on_a_gpu_train_as_the_unsplit_model(name: str, tmp_path: Path) -> None:
    """3 + 5 samples, then 8, without dropout, in float64."""
    ready = ready_for(name, tmp_path, dropout=False, precision="float64")
    made = plan(ready.units, [len(ready.units) // 2], [[3, 5], [8]])
    found = compared(ready, made, everywhere_on_gpu(made), tmp_path)
    assert found.within(FP64), (found.found, found.floor())


@pytest.mark.parametrize("shares", [[[8], [8]], [[3, 5], [8]]], ids=["pipeline", "group"])
def test_a_gpu_and_cpus_train_one_model(shares: list[list[int]], tmp_path: Path) -> None:
    """The first device computes on the GPU and the others on CPUs: in float64 the weights are the GPU's alone."""
    ready = ready_for("bert", tmp_path, dropout=False, precision="float64")
    made = plan(ready.units, [2], shares)
    found = compared(ready, made, {made.devices[0]: GPU}, tmp_path)
    assert found.within(FP64), (found.found, found.floor())


def test_dropout_of_a_group_on_a_gpu_is_that_of_one_device(tmp_path: Path) -> None:
    """Masks are drawn for the whole micro-batch, by the kernel that draws them for one device; attention has none."""
    family = BY_NAME["bert"]
    model = model_request(family, dropout=True, precision="float64")
    model = replace(model, config={**(model.config or {}), "attention_probs_dropout_prob": 0.0})
    ready = prepared(model, data_request(family, tmp_path), tmp_path)
    made = plan(ready.units, [2], [[3, 5], [8]])
    found = compared(ready, made, everywhere_on_gpu(made), tmp_path)
    assert found.within(FP64), (found.found, found.floor())


@pytest.mark.parametrize(("name", "half"), [("vit", "bf16"), ("llama", "bf16"), ("bert", "fp16")])
def test_a_pipeline_on_a_gpu_computes_in_half_precision(name: str, half: str, tmp_path: Path) -> None:
    """Float16 with its loss scale too."""
    ready = ready_for(name, tmp_path, mixed_precision=half)
    made = plan(ready.units, [len(ready.units) // 2], [[8], [8]])
    found = compared(ready, made, everywhere_on_gpu(made), tmp_path)
    assert found.bitwise or found.within(HALF), (found.found, found.floor())


def test_adapters_on_four_bits_train_on_a_gpu_as_on_cpus(tmp_path: Path) -> None:
    """QLoRA without dropout: the GPU packs the same weights, and losses are those of CPUs within rounding."""
    lora = Lora(r=4, alpha=8, dropout=0.0, targets=("q_proj", "v_proj"))
    ready = chats_ready(tmp_path / "ready")
    ready = prepared(replace(ready.model, lora=lora), ready_data(tmp_path / "ready"), tmp_path / "plain")
    made = plan(ready.units, [3], [[8], [8]])
    training = request(rounds=6)
    ours = run_plan(ready, made, training, tmp_path / "gpu", accelerators=everywhere_on_gpu(made))
    theirs = run_plan(ready, made, training, tmp_path / "cpu")
    for here, there in zip(ours.rounds, theirs.rounds, strict=True):
        assert here.loss == pytest.approx(there.loss, rel=1e-4)


def ready_data(folder: Path) -> DataRequest:
    """Return the request of the chats that `chats_ready` has written."""
    return DataRequest(source=str(folder / "chats.jsonl"), max_length=128, chat_template=str(folder / "chat.jinja"))


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_recomputed_activations_change_no_bit_on_a_gpu(name: str, tmp_path: Path) -> None:
    """Dropout too."""
    ready = ready_for(name, tmp_path)
    kept = plan(ready.units, [len(ready.units) // 2], [[8], [8]])
    states: list[dict[str, torch.Tensor]] = []
    for made in (kept, everywhere(kept, recompute=True)):
        folder = tmp_path / str(len(states))
        run_plan(ready, made, request(rounds=4), folder, accelerators=everywhere_on_gpu(made))
        states.append(final_state(folder))
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_a_killed_worker_of_a_gpu_costs_no_weight(tmp_path: Path) -> None:
    """The others take over what it held, its memory on the GPU is free again, and the end is that without a loss."""
    ready = ready_for("bert", tmp_path)
    made = plan(ready.units, [3], [[8], [8]])
    on_gpu, training = everywhere_on_gpu(made), request(rounds=8, checkpoint_every_rounds=2)
    run_plan(ready, made, training, tmp_path / "whole", accelerators=on_gpu)
    launcher, folder = Recording(), tmp_path / "cut"
    task = training_task(ready, made, training, folder, accelerators=on_gpu)
    reviser = Reviser(problem=Problem.of(task.plan, task.fleet, task.profile, ready.seed))
    changes = {"launcher": launcher, "progress": killing(launcher, 5, 1), "revise": reviser}
    metrics = run_plan(ready, made, training, folder, accelerators=on_gpu, **changes)
    assert metrics.revised_from_round is not None
    assert_near(tmp_path / "whole", folder, 1e-5)


def test_clients_on_a_gpu_average(tmp_path: Path) -> None:
    """Split learning: lanes on the GPU, whose weights a device averages, train as the loop on CPUs in float64."""
    ready = ready_for("bert", tmp_path, dropout=False, precision="float64")
    made = split(ready, "xy")
    run_plan(ready, made, TRAINING, tmp_path / "gpu", accelerators=everywhere_on_gpu(made))
    run_plan(ready, made, TRAINING, tmp_path / "cpu")
    assert_near(tmp_path / "cpu", tmp_path / "gpu", 1e-9)


def test_a_collector_on_a_gpu(tmp_path: Path) -> None:
    """LoLa-DEFT's collector holds all optimizer state."""
    ready = ready_for("bert", tmp_path, dropout=False, precision="float64")
    made = by_blocks(ready, [2])
    run_plan(ready, made, TRAINING, tmp_path / "gpu", accelerators=everywhere_on_gpu(made))
    run_plan(ready, made, TRAINING, tmp_path / "cpu")
    assert_near(tmp_path / "cpu", tmp_path / "gpu", 1e-9)


def assert_near(wanted: Path, found: Path, tolerance: float) -> None:
    """Compare every tensor of two trainings' ends, relative to its size."""
    theirs, ours = final_state(wanted), final_state(found)
    for name, tensor in theirs.items():
        distance = float((tensor.double() - ours[name].double()).norm())
        assert distance <= tolerance * max(1.0, float(tensor.double().norm())), name


def test_a_device_without_gpu_memory_says_so(tmp_path: Path) -> None:
    """Beyond the memory that the fleet gives a device of a GPU its worker is refused more, and the run says so."""
    ready = ready_for("bert", tmp_path)
    made = plan(ready.units, [], [[8]])
    with pytest.raises(Infeasible, match="ran out of its 0.00 GB"):
        run_plan(ready, made, request(rounds=2), tmp_path, accelerators=everywhere_on_gpu(made), memory_bytes=1 << 20)


def test_a_round_tells_the_gpus_memory_and_energy(tmp_path: Path) -> None:
    """The peak has the context, which is hundreds of megabytes, and the energy is the GPU's."""
    ready = ready_for("bert", tmp_path)
    made = plan(ready.units, [], [[8]])
    metrics = run_plan(ready, made, request(rounds=4), tmp_path, accelerators=everywhere_on_gpu(made))
    (peak,) = metrics.peak_memory_bytes
    assert 100e6 < peak.amount < 3e9
    assert any(each.energy_j for each in metrics.rounds)
