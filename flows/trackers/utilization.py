"""Model FLOPs utilization (MFU): the operations that a training step needs, over those that its devices could do."""

import re

from fleetune.contracts.fleet import Fleet
from fleetune.contracts.mixed_precision import BF16, FP16
from fleetune.contracts.plan import Plan
from fleetune.contracts.profile import Profile, Unit

FLOAT32 = "float32"
PEAK_FLOPS_PER_S: dict[str, dict[str, float]] = {
    r"H200$": {FLOAT32: 67e12, BF16: 989e12, FP16: 989e12},
    r"H100 80GB HBM3$": {FLOAT32: 67e12, BF16: 989e12, FP16: 989e12},
    r"H100 PCIe$": {FLOAT32: 51e12, BF16: 756e12, FP16: 756e12},
    r"A100-(SXM4|PCIE)-\d+GB$": {FLOAT32: 19.5e12, BF16: 312e12, FP16: 312e12},
    r"V100-SXM2-\d+GB$": {FLOAT32: 15.7e12, FP16: 125e12},
    r"V100-PCIE-\d+GB$": {FLOAT32: 14e12, FP16: 112e12},
    r"L40S$": {FLOAT32: 91.6e12, BF16: 362e12, FP16: 362e12},
    r"L4$": {FLOAT32: 30.3e12, BF16: 121e12, FP16: 121e12},
    r"A40$": {FLOAT32: 37.4e12, BF16: 149.7e12, FP16: 149.7e12},
    r"A10$": {FLOAT32: 31.2e12, BF16: 125e12, FP16: 125e12},
    r"T4$": {FLOAT32: 8.1e12, FP16: 65e12},
}
"""End of the name that torch gives a GPU -> precision -> its peak without sparsity, by NVIDIA's data sheets. That of
float32 is without tensor cores, which torch leaves alone unless it is told otherwise."""


def round_at_peak_s(fleet: Fleet, profile: Profile, plan: Plan, precision: str) -> float | None:
    """Return the seconds of a round at the peak of all devices of the plan; divided by measured ones they are the MFU.

    precision: `float32`, `float64`, `bf16` or `fp16`. None where a peak is not known, as of every CPU, and for plans
    that skip operations or train several lanes.
    """
    if plan.gates or len(plan.lanes) > 1:
        return None
    peaks = [peak_flops_per_s(fleet.device(name).accelerator_name, precision) for name in plan.devices]
    known = [peak for peak in peaks if peak is not None]
    if not known or len(known) < len(peaks):
        return None
    return step_flops(profile.units) * plan.batch_samples / sum(known)


def peak_flops_per_s(name: str, precision: str) -> float | None:
    """Return the peak of an accelerator by its name; None if it is not known."""
    found = (peaks for end, peaks in PEAK_FLOPS_PER_S.items() if re.search(rf"(?<!\w){end}", name))
    return next(found, {}).get(precision)


def step_flops(units: tuple[Unit, ...]) -> float:
    """Return the operations of a training step per sample: the forward of each unit, as many for the gradients of its
    inputs behind the first unit that is trained, and as many for those of its weights, by the share that is trained.
    """
    total, behind = 0.0, False
    for unit in units:
        trained = unit.trainable_bytes / unit.param_bytes if unit.param_bytes else 0.0
        total += unit.flops * (1 + behind + trained)
        behind = behind or unit.trainable_bytes > 0
    return total
