"""One family trained for two steps, cut between all of its units, beside a loop of plain PyTorch on the whole model."""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim import SGD
from torch.utils import _pytree as pytree

from fleetune.contracts.input_spec import InputSpec
from fleetune.contracts.run_config import ModelRequest
from fleetune.contracts.tasks import SEQ2SEQ, predicts_tokens
from fleetune.data.prepared_data import PATCH_GRID, PATCH_MASK, PIXELS
from fleetune.errors import Refused
from fleetune.models.graph import Graph
from fleetune.models.init_weights import initial_model, write_init_weights
from fleetune.models.meta_run import without_device
from fleetune.models.model_inputs import input_spec
from fleetune.models.randomness import WithoutDropout
from fleetune.models.segment import SegmentRunner, Values
from fleetune.models.skeleton import skeleton
from fleetune.models.source import configuration, text_part
from fleetune.models.unit_graph import record_units
from fleetune.preparation.reading_check import check_reading
from fleetune.preparation.step_comparison import Samples, compare_step

STEPS, SAMPLES, TOKENS = 2, 4, 12
LEARNING_RATE = 0.05
FACTOR = 50.0
"""Largest accepted distance from the plain loop, as a multiple of the plain loop's own rounding."""
ORDERS = 4
"""Number of sample orders by which rounding is measured."""
LABELS = ("a", "b", "c")
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Outcome:
    """What came of a family."""

    status: str
    """bitwise, bound, refused or differs."""
    units: int = 0
    layers: bool = False
    """True if layers are the units, because blocks cannot be."""
    distance: float = 0.0
    """Of the change of all weights, relative to the plain loop's."""
    floor: float = 0.0
    """The same of the plain loop with its samples in another order."""
    why: str = ""


BITWISE, BOUND, REFUSED, DIFFERS, UNTRIED = "bitwise", "bound", "refused", "differs", "untried"


class Untried(Exception):
    """The small configuration makes no model that runs by itself."""


@dataclass(frozen=True)
class _Trial:
    graph: Graph
    inputs: Tensors
    labels: torch.Tensor
    task: str
    make: Callable[[], nn.Module]
    layers: bool
    """True if layers are the units, because blocks cannot be."""

    def trained(self, cut: bool, order: torch.Tensor | None = None) -> tuple[Tensors, list[float]]:
        """Return the change of every trained parameter, and the losses."""
        model = self.make().train()
        start = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
        order = torch.arange(SAMPLES) if order is None else order
        step = _cut_step(self.graph, model) if cut else _plain_step(model)
        parameters = [p for p in model.parameters() if p.requires_grad]
        optimizer = SGD(parameters, lr=LEARNING_RATE)
        losses = []
        for number in range(STEPS):
            torch.manual_seed(number)
            losses.append(step({k: v[order] for k, v in self.inputs.items()}, self.labels[order], self.task))
            optimizer.step()
            optimizer.zero_grad()
        return {n: p.detach() - start[n] for n, p in model.named_parameters() if p.requires_grad}, losses


def _loss(logits: torch.Tensor, labels: torch.Tensor, task: str) -> torch.Tensor:
    if task == "causal-lm":
        logits, labels = logits[:, :-1].transpose(1, 2), labels[:, 1:]
    return functional.cross_entropy(logits.transpose(1, 2) if task == SEQ2SEQ else logits, labels)


def _plain_step(model: nn.Module) -> Callable[[Tensors, torch.Tensor, str], float]:
    def step(inputs: Tensors, labels: torch.Tensor, task: str) -> float:
        result: Any = model(**inputs)
        loss = _loss(result.logits if hasattr(result, "logits") else pytree.tree_leaves(result)[0], labels, task)
        loss.backward()
        return float(loss.detach())

    return step


def _cut_step(graph: Graph, model: nn.Module) -> Callable[[Tensors, torch.Tensor, str], float]:
    """Return a step in which every unit is a segment of its own and only values that cross cuts are passed on."""
    segments = [SegmentRunner(graph, (unit.name,), model, torch.device("cpu")) for unit in graph.units]

    def step(inputs: Tensors, labels: torch.Tensor, task: str) -> float:
        values: Values = {number: inputs[name] for name, number in graph.inputs.items()}
        history: list[tuple[Values, Values]] = []
        for segment in segments:
            taken = {n: values[n].detach().clone() for n in segment.input_values}
            taken = {n: v.requires_grad_() if graph.value(n).gradient else v for n, v in taken.items()}
            values = segment.run(taken, len(labels))
            history.append((taken, values))
        loss = _loss(values[graph.output], labels, task)
        loss.backward()
        for (later, _), (_, outputs) in zip(reversed(history[1:]), reversed(history[:-1]), strict=True):
            reached = [n for n, v in outputs.items() if v.requires_grad and later[n].grad is not None]
            if reached:
                torch.autograd.backward([outputs[n] for n in reached], [later[n].grad for n in reached])
        return float(loss.detach())

    return step


def try_family(task: str, config: Mapping[str, Any], granularity: str = "block") -> Outcome:
    """Train a small random model both ways and compare."""
    try:
        with tempfile.TemporaryDirectory(prefix="fleetune-") as folder:
            trial = _prepare(task, config, granularity, Path(folder))
            check_reading(trial.make(), trial.inputs, trial.labels, task)
            compare_step(
                trial.graph, trial.make(), Samples(inputs=trial.inputs, labels=trial.labels, task=task, seed=5)
            )
            return _compare(trial)
    except Untried as reason:
        return Outcome(UNTRIED, why=str(reason))
    except Refused as refusal:
        return Outcome(REFUSED, why=" ".join(str(refusal).split()))


def _prepare(task: str, changes: Mapping[str, Any], granularity: str, folder: Path) -> _Trial:
    request = ModelRequest(task=task, config=dict(changes), granularity=granularity)
    start = folder / "start.safetensors"
    try:
        config = configuration(request, () if predicts_tokens(task) else LABELS, pad_token_id=0)
        inputs, labels = _samples(request)
        module = skeleton(config, request)
        write_init_weights(config, request, 3, start)
        _plain_step(initial_model(config, request, start).train())(inputs, labels, task)
    except Exception as error:  # the code of a model, or of its configuration, may raise anything
        raise Untried(f"{type(error).__name__}: {' '.join(str(error).split())[:160]}") from error
    notes: list[str] = []
    graph = without_device(record_units(module, inputs, granularity, notes.append))
    return _Trial(graph, inputs, labels, task, lambda: initial_model(config, request, start), bool(notes))


def _samples(request: ModelRequest) -> tuple[Tensors, torch.Tensor]:
    spec = input_spec(request)
    drawn = torch.Generator().manual_seed(7)
    if spec.patches is not None:
        return _patched(*spec.patches, spec.channels, drawn), torch.arange(SAMPLES) % len(LABELS)
    if not spec.is_text:
        size = spec.image_size or 32
        pixels = torch.randn(SAMPLES, spec.channels, size, size, generator=drawn)
        return {PIXELS: pixels}, torch.arange(SAMPLES) % len(LABELS)
    ids = torch.randint(5, 240, (SAMPLES, TOKENS), generator=drawn)
    mask = torch.ones(SAMPLES, TOKENS, dtype=torch.long)
    mask[0, TOKENS - 3 :] = 0
    ids[mask == 0] = getattr(text_part(configuration(request, pad_token_id=0)), "pad_token_id", 0) or 0
    if request.task == SEQ2SEQ:
        labels = torch.randint(5, 240, (SAMPLES, TOKENS), generator=drawn)
        start = torch.full((SAMPLES, 1), _start_token(spec))
        return {
            "input_ids": ids,
            "attention_mask": mask,
            "decoder_input_ids": torch.cat([start, labels[:, :-1]], dim=1),
        }, labels
    end = getattr(text_part(configuration(request)), "eos_token_id", None)
    if isinstance(end, int) and request.task != "causal-lm":  # some classifiers read the end token
        ids[torch.arange(SAMPLES), mask.sum(1) - 1] = end
    labels = ids.masked_fill(mask == 0, -100) if request.task == "causal-lm" else torch.arange(SAMPLES) % len(LABELS)
    return {"input_ids": ids, "attention_mask": mask}, labels


def _patched(side: int, most: int, channels: int, drawn: torch.Generator) -> Tensors:
    """Return images of different shapes, as patches: wide, high, one as large as it may be, one of a single row."""
    edge = int(most**0.5)
    grids = torch.tensor([[edge, edge], [edge // 2, edge], [edge, edge // 2 + 1], [1, edge]])
    mask = (torch.arange(most)[None, :] < grids.prod(1)[:, None]).long()
    patches = torch.randn(SAMPLES, most, channels * side**2, generator=drawn)
    return {PIXELS: patches * mask[:, :, None], PATCH_MASK: mask, PATCH_GRID: grids}


def _start_token(spec: InputSpec) -> int:
    if spec.decoder_start_token_id is None:
        raise Refused("model: its configuration names no decoder_start_token_id")
    return spec.decoder_start_token_id


def _compare(trial: _Trial) -> Outcome:
    units = len(trial.graph.units)
    plain, losses = trial.trained(cut=False)
    ours, our_losses = trial.trained(cut=True)
    if losses == our_losses and all(torch.equal(plain[name], ours[name]) for name in plain):
        return Outcome(BITWISE, units, trial.layers)
    if not all(bool(change.isfinite().all()) for change in plain.values()):
        return Outcome(UNTRIED, units, trial.layers, why="a loop of plain PyTorch itself gives weights that are NaN")
    with WithoutDropout():
        plain, losses = trial.trained(cut=False)
        ours, our_losses = trial.trained(cut=True)
        floors = dict.fromkeys(plain, 0.0)
        loss_floor = 0.0
        for number in range(ORDERS):
            order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(number))
            moved, moved_losses = trial.trained(cut=False, order=order)
            floors = {name: max(floor, _distance(moved, plain, name)) for name, floor in floors.items()}
            loss_floor = max(loss_floor, *(abs(a - b) for a, b in zip(moved_losses, losses, strict=True)))
    sizes = {name: float(change.double().norm()) for name, change in plain.items()}
    shares = sorted(floors[name] / sizes[name] for name in plain if sizes[name])
    usual = shares[len(shares) // 2] if shares else 0.0
    bounds = {name: FACTOR * max(floors[name], usual * sizes[name]) for name in plain}
    found = {name: _distance(ours, plain, name) for name in plain}
    whole = sum(size**2 for size in sizes.values()) ** 0.5 or 1.0
    distance = sum(d**2 for d in found.values()) ** 0.5 / whole
    floor = sum(d**2 for d in floors.values()) ** 0.5 / whole
    beyond = [name for name in plain if not found[name] <= bounds[name]]
    if beyond:
        worst = max(beyond, key=lambda name: found[name] / (sizes[name] or 1e-30))
        return Outcome(
            DIFFERS, units, trial.layers, distance, floor, f"{len(beyond)} of {len(plain)} tensors, most in {worst}"
        )
    return Outcome(BOUND, units, trial.layers, distance, floor)


def _distance(found: Tensors, plain: Tensors, name: str) -> float:
    return float((found[name].double() - plain[name].double()).norm())
