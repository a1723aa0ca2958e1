"""Seconds that no plan of a problem can beat, whatever its strategy."""

import numpy as np

from fleetune.clock import Clock
from fleetune.planning.problem import Problem


def lower_bound_s(problem: Problem, clock: Clock) -> float:
    """The largest of three bounds, none of which counts links or memory.

    1. Total work over total speed. With r(d, u) the least seconds per sample of unit u on device d at any share, and
       weights w(d) that sum to 1, a round takes at least the weighted mean of the devices' loads, and so
       samples · Σ_u min_d w(d) · r(d, u); the weights are the devices' shares of the fleet's speed.
    2. The same for each unit alone: what cannot be divided further must still be dealt to devices.
    3. One micro-batch runs forward and backward through all units, each on its fastest device at its fastest share.

    A nanosecond per task is taken off: the clock rounds.
    """
    samples = problem.micro_batch_samples
    devices = [times.device for times in problem.profile.times if times.device in _names(problem)]
    shares = range(1, samples + 1)
    both = np.array([[np.sum(clock.unit_times(d, y), axis=0) for y in shares] for d in devices])
    per_sample = np.min(both / np.arange(1, samples + 1)[None, :, None], axis=1)
    total = problem.micro_batches * samples
    rounding_s = 1e-9 * max(problem.micro_batches, len(problem.profile.units))
    bounds = [float(np.sum(np.min(both, axis=(0, 1))))]
    speeds = _inverse(per_sample.sum(axis=1))
    if np.isfinite(speeds).all():
        weights = speeds / speeds.sum()
        bounds.append(total * float(np.sum(np.min(weights[:, None] * per_sample, axis=0))))
    bounds.append(total * float(np.max(1.0 / np.sum(_inverse(per_sample), axis=0))))
    return max(0.0, max(bounds) - rounding_s)


def _inverse(values: np.ndarray) -> np.ndarray:
    """1/x, infinite at 0."""
    with np.errstate(divide="ignore"):
        return np.asarray(1.0 / values)


def _names(problem: Problem) -> set[str]:
    return {device.name for device in problem.fleet.devices}
