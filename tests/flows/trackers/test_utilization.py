"""Model FLOPs utilization: known GPUs, and nothing where a peak is not known."""

from dataclasses import replace
from pathlib import Path

import pytest

from fleetune.contracts.fleet import Fleet
from fleetune.contracts.profile import Unit
from flows.trackers.run_points import RunPoints
from flows.trackers.utilization import peak_flops_per_s, step_flops
from tests.support.drawing.contents import content
from tests.support.flows.trackers.runs import TrainingRun


def with_gpus(fleet: Fleet, *names: str) -> Fleet:
    """The fleet with these GPUs in its first devices."""
    first = tuple(
        replace(device, accelerator="cuda:0", accelerator_name=name)
        for device, name in zip(fleet.devices, names, strict=False)
    )
    return replace(fleet, devices=(*first, *fleet.devices[len(first) :]))


def unit(name: str, flops: int, trained: float) -> Unit:
    """A unit of 100 bytes of weights, of which a share is trained."""
    return Unit(
        name=name,
        param_bytes=100,
        trainable_bytes=int(100 * trained),
        activation_bytes=1,
        output_bytes=1,
        gradient_bytes=1,
        flops=flops,
    )


@pytest.mark.parametrize(
    ("name", "float32", "bf16", "fp16"),
    [
        ("NVIDIA H100 80GB HBM3", 67e12, 989e12, 989e12),
        ("NVIDIA H100 PCIe", 51e12, 756e12, 756e12),
        ("NVIDIA A100-SXM4-80GB", 19.5e12, 312e12, 312e12),
        ("Tesla T4", 8.1e12, None, 65e12),
        ("NVIDIA L4", 30.3e12, 121e12, 121e12),
        ("NVIDIA L40S", 91.6e12, 362e12, 362e12),
        ("NVIDIA L40S Laptop GPU", None, None, None),
        ("NVIDIA XL4", None, None, None),
        ("", None, None, None),
    ],
)
def test_a_peak_is_that_of_exactly_this_gpu(
    name: str, float32: float | None, bf16: float | None, fp16: float | None
) -> None:
    """Names that only resemble a known one have no peak; half precision has its own, and float64 none."""
    found = [peak_flops_per_s(name, precision) for precision in ("float32", "bf16", "fp16", "float64")]
    assert found == [float32, bf16, fp16, None]


def test_a_step_of_a_whole_model_is_three_forwards_but_for_the_first_inputs() -> None:
    """Backward is twice the forward where all is trained; nothing flows back to frozen units before the first trained
    one, and a unit of which a tenth is trained has a tenth of the gradients of weights."""
    assert step_flops((unit("a", 10, 1), unit("b", 20, 1))) == 10 * 2 + 20 * 3
    assert step_flops((unit("a", 10, 0), unit("b", 20, 0.1), unit("c", 30, 0))) == pytest.approx(10 + 20 * 1.1 + 30 * 2)


def test_a_round_has_an_mfu_if_all_its_devices_have_a_peak(tmp_path: Path) -> None:
    """Three T4 have three times the peak of one; with one unknown device the share of all would be made up."""
    made = content()
    flops = step_flops(made.profile.units) * made.plan.plan.batch_samples
    for number, gpus in enumerate((3, 2)):
        fleet = with_gpus(made.fleet, *["Tesla T4"] * gpus)
        run = TrainingRun(tmp_path / str(number) / "store", fleet=fleet)
        run.commit(list(made.training.rounds[:2]))
        run.log({0: 1.0, 1: 3.0})
        values = RunPoints(run.store, lambda run=run: run.record).read(over=False)[1].values  # type: ignore[misc]
        assert values.get("train/mfu") == (pytest.approx(flops / 2 / (3 * 8.1e12)) if gpus == 3 else None)
