"""Whether a training that met faults ended as one that did not."""

from collections.abc import Callable, Mapping
from itertools import accumulate
from pathlib import Path

import torch

from fleetune.contracts import json_io
from fleetune.contracts.metrics import TrainingMetrics
from fleetune.contracts.record import record
from fleetune.training.checkpoints import trained_tensors
from fleetune.training.commit_log import EVENTS
from flows.chaos.throughput import read_events

LIMIT = 1e-5
"""Largest relative difference of a loss or tensor, where rounding allows it."""
TINY = 1e-300
FACTOR = 20.0
"""Largest difference in multiples of what another order of additions leads to on this machine.

Of a loss, in the rounds up to its own: rounding grows with the rounds, and by chance a loss is near to another one.
"""


@record
class Check:
    """One thing that must hold, and what was found."""

    name: str
    ok: bool
    found: str


class Trained:
    """The result of a training, by its output folder."""

    def __init__(self, output: Path) -> None:
        self.metrics = json_io.read(TrainingMetrics, output / "metrics" / "training.json")
        self.events = read_events(output / "metrics" / EVENTS)
        self.state: Mapping[str, torch.Tensor] = trained_tensors(output / "checkpoint" / "state")

    @property
    def losses(self) -> list[float]:
        """The loss of every round."""
        return [each.loss for each in self.metrics.rounds]


def compare(
    whole: Trained, met: Trained, exact_rounds: int, rounding: Callable[[], Trained | None]
) -> tuple[Check, ...]:
    """Compare rounds, losses and weights.

    exact_rounds: number of first rounds whose losses must agree bit for bit, as no other plan than the first one
    trained them; if these are all, the weights must too. rounding: trains as `whole` did, with additions in another
    order.
    """
    rounds = [each.round for each in met.metrics.rounds]
    checks = [
        Check(
            name="every round is committed once",
            ok=rounds == [each.round for each in whole.metrics.rounds] == list(range(len(rounds))),
            found=f"{len(rounds)} rounds",
        )
    ]
    exact = {_loss(n) for n in range(exact_rounds)}
    exact |= {_tensor(name) for name in whole.state} if exact_rounds >= len(rounds) else set()
    differences = _differences(whole, met)
    floor: dict[str, float] = {}
    if any(value > LIMIT for key, value in differences.items() if key not in exact):
        other = rounding()
        floor = _differences(whole, other) if other is not None else {}
        losses = [key for key in floor if _is_loss(key)]  # in the order of rounds
        floor |= dict(zip(losses, accumulate((floor[key] for key in losses), max), strict=True))
    limits = {key: 0.0 if key in exact else max(LIMIT, FACTOR * floor.get(key, 0.0)) for key in differences}
    for name, of in (("losses are equal", _is_loss), ("weights are equal", _is_weight)):
        found = {key: value for key, value in differences.items() if of(key)}
        checks.append(_judged(name, found, limits, bool(floor)))
    return tuple(checks)


def _differences(whole: Trained, met: Trained) -> dict[str, float]:
    """Return the relative difference of each round's loss and of each tensor; infinite where one is missing."""
    pairs = zip(whole.losses, met.losses, strict=False)
    found = {_loss(n): abs(a - b) / max(abs(a), 1e-30) for n, (a, b) in enumerate(pairs)}
    for name, tensor in whole.state.items():
        if name not in met.state or met.state[name].shape != tensor.shape:
            found[_tensor(name)] = float("inf")
            continue
        distance = float((tensor.double() - met.state[name].double()).norm())
        found[_tensor(name)] = distance / max(1.0, float(tensor.double().norm()))
    return found


def _loss(round: int) -> str:
    return f"loss of round {round}"


def _tensor(name: str) -> str:
    return f"tensor {name}"


def _is_loss(key: str) -> bool:
    return key.startswith("loss ")


def _is_weight(key: str) -> bool:
    return not _is_loss(key)


def _judged(name: str, found: Mapping[str, float], limits: Mapping[str, float], rounded: bool) -> Check:
    if not any(found.values()):
        return Check(name=name, ok=True, found="bit for bit")
    worst = max(found, key=lambda key: found[key] / max(limits[key], TINY))
    allowed = f"{limits[worst]:.1e}" if limits[worst] else "no bit"
    said = f"{worst} differs by {found[worst]:.1e}, allowed {allowed}"
    if rounded:
        said += f" ({FACTOR:g} times what another order of additions changes)"
    return Check(name=name, ok=found[worst] <= limits[worst], found=said)
