"""Plans of several lanes, their trainings, and the controls of these."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from fleetune.contracts.plan import DeviceOrder, Lane, LinkUse, Plan, Segment, Share
from fleetune.contracts.profile import Profile
from fleetune.contracts.run_config import Lora
from fleetune.contracts.training_request import TrainingRequest
from tests.support.training.control_comparison import Difference, difference, whole_model
from tests.support.training.lane_training import lane_models, train_by_blocks
from tests.support.training.model_families import BY_NAME, data_request, model_request
from tests.support.training.runs import Prepared, final_state, prepared, run_plan
from tests.support.training.unsplit_training import Control

TRAINING = TrainingRequest(
    rounds=7, batch_samples=24, micro_batch_samples=8, learning_rate=1e-3, weight_decay=0.1, optimizer="adamw"
)
LORA = Lora(r=4, alpha=8, dropout=0.1, targets=("query", "value"))


def segment(units: tuple[str, ...], device: str, trains: tuple[str, ...] = ()) -> Segment:
    """Return a segment of one device."""
    return Segment(units=units, shares=(Share(device=device, samples=8),), warmup=3, trains=trains)


def lanes_plan(lanes: list[Lane], **changes: object) -> Plan:
    """Return a plan of these lanes."""
    return Plan(strategy="test", micro_batch_samples=8, micro_batches=3, lanes=tuple(lanes), **changes)  # type: ignore[arg-type]


def by_blocks(ready: Prepared, cuts: list[int]) -> Plan:
    """Return LoLa-DEFT's plan: every device runs the whole model and trains the units between two cuts."""
    borders = [0, *cuts, len(ready.units)]
    lanes = [
        Lane(name=f"block-{k}", segments=(segment(ready.units, f"d{k}", ready.units[a:b]),))
        for k, (a, b) in enumerate(zip(borders, borders[1:], strict=False))
    ]
    links = tuple(LinkUse(source=f"d{k}", target="s", share=0.5) for k in range(len(lanes)))
    return lanes_plan(lanes, collector="s", links=links)


def split(
    ready: Prepared,
    clients: str,
    helper: str = "h",
    every: int = 3,
    fewer: dict[str, int] | None = None,
    rounds: dict[str, int] | None = None,
) -> Plan:
    """Return a plan of split learning: clients keep both ends, one helper runs the middle of each.

    fewer: client -> its micro-batches, if it has fewer than 3. rounds: client -> its steps between averages, if fewer.
    """
    less, steps = fewer or {}, rounds or {}
    first, second = 1, len(ready.units) - 1
    parts = (ready.units[:first], ready.units[first:second], ready.units[second:])
    lanes = [
        Lane(
            name=c,
            segments=(segment(parts[0], c), segment(parts[1], helper), segment(parts[2], c)),
            micro_batches=less.get(c, 0),
            rounds=steps.get(c, 0),
        )
        for c in clients
    ]
    orders = []
    for c in clients:
        every_one = range(less.get(c, 3))
        letters = [*((0, "F", m) for m in every_one), *((2, x, m) for m in every_one for x in "FB")]
        letters += [(0, "B", m) for m in every_one]
        orders.append(DeviceOrder(device=c, actions=tuple(f"{c}/{i}{x}{m}" for i, x, m in letters)))
    middle = tuple(f"{c}/1{x}{m}" for x in "FB" for c in clients for m in range(less.get(c, 3)))
    orders.append(DeviceOrder(device=helper, actions=middle))
    return lanes_plan(lanes, order=tuple(orders), average_every_rounds=every)


def ready_for(folder: Path, name: str = "bert", *, lora: Lora | None = None, **changes: Any) -> Prepared:
    """Return a tiny model with dropout, and data."""
    family = BY_NAME[name]
    model = model_request(family, dropout=True, lora=lora, **changes)
    return prepared(model, data_request(family, folder), folder)


def beside(ready: Prepared, folder: Path, made: Plan, control: Control, **changes: Any) -> Difference:
    """Train by the plan, with changes of the training's task, and compare with its control."""
    metrics = run_plan(ready, made, TRAINING, folder, **changes)
    return difference(ready, Control([r.loss for r in metrics.rounds], final_state(folder)), control)


def sized(ready: Prepared, profile: Profile) -> Profile:
    """Return a profile whose units have the model's own bytes of trained parameters, and AdamW's two moments."""
    named = [(n, p.numel() * p.element_size()) for n, p in whole_model(ready).named_parameters() if p.requires_grad]
    units = []
    for unit in profile.units:
        size = sum(n_bytes for name, n_bytes in named if name.startswith(f"{unit.name}."))
        units.append(replace(unit, param_bytes=size, trainable_bytes=size))
    assert sum(unit.trainable_bytes for unit in units) == sum(n_bytes for _, n_bytes in named)
    return replace(profile, units=tuple(units), optimizer_bytes_per_param_byte=2.0)


def control_by_blocks(ready: Prepared, made: Plan, names: list[set[str]]) -> Control:
    """Return the control of a plan by blocks. names: the parameters that each lane trains."""
    whole = whole_model(ready)
    return train_by_blocks(lane_models(ready, whole, made), whole, TRAINING, names)


def parameters_of(ready: Prepared, units: tuple[str, ...]) -> set[str]:
    """Return the names of the trained parameters of these units."""
    named = ((n, p) for n, p in whole_model(ready).named_parameters() if p.requires_grad)
    return {n for n, _ in named if any(n.startswith(f"{unit}.") for unit in units)}
