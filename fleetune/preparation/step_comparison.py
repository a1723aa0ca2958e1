"""Compares one step of the recorded model with the model's own, before anything is trained by the recording.

Both steps start from the same weights, samples and random seed, in training mode. A faithful recording runs the same
operations in the same order, so all bits agree. When they do not, the model's own step is repeated with the samples in
other orders to measure rounding, and a difference above FACTOR times that is refused by name. This guards against
model families that were never tested.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn
from torch.utils import _pytree as pytree

from fleetune.contracts.input_spec import IGNORE_INDEX
from fleetune.contracts.run_config import ModelRequest
from fleetune.contracts.tasks import SEQ2SEQ
from fleetune.data.prepared_data import DECODER_IDS, PreparedData
from fleetune.errors import Refused, first_line
from fleetune.formatting import gigabytes
from fleetune.models.compute_copies import computed_type, computing_in, in_type
from fleetune.models.graph import Graph
from fleetune.models.init_weights import INIT_WEIGHTS, initial_model
from fleetune.models.loss import FLOAT32_BYTES, count_targets, loss_sum
from fleetune.models.meta_run import without_device
from fleetune.models.randomness import WithoutDropout
from fleetune.models.segment import SegmentRunner
from fleetune.models.skeleton import saved_configuration
from fleetune.preparation.packing_check import check_packing
from fleetune.preparation.reading_check import check_reading

RECORDED_SAMPLES = 4
"""Number of training samples in a step; any number above 1 works, since the batch size of shapes is symbolic."""
FACTOR = 50.0
"""Largest accepted difference, as a multiple of the measured rounding."""
ORDERS = 4
"""Number of sample orders by which rounding is measured."""
HEADROOM = 2.0
"""Required free memory, as a multiple of weights and two sets of gradients; allows for unknown activations."""
OUTPUT, LOSS = "its output", "its loss"

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """The samples and the random seed of a step."""

    inputs: Mapping[str, torch.Tensor]
    """name -> tensor, shape [samples, ...]."""
    labels: torch.Tensor
    task: str
    seed: int

    def ordered(self, order: torch.Tensor) -> "Samples":
        """The same samples in another order."""
        inputs = {name: value[order] for name, value in self.inputs.items()}
        return Samples(inputs=inputs, labels=self.labels[order], task=self.task, seed=self.seed)


def compare_recorded(
    graph: Graph, module: nn.Module, request: ModelRequest, model_folder: Path, data: PreparedData, seed: int
) -> tuple[str, ...]:
    """Compare the prepared graph with the model in this process; returns sentences about what could not be compared.

    `module` is the whole model on the meta device.
    """
    needed, free = needed_bytes(module), psutil.virtual_memory().available
    if needed > free:
        return (
            "the recorded model was not compared with the model's own step before training, and what it reads of "
            "other samples, of later tokens and of padding was not looked at: that takes about "
            f"{gigabytes(needed, 1)} of this machine's memory, and {gigabytes(free, 1)} are free",
        )
    rows = data.rows("train", [index % data.size("train") for index in range(RECORDED_SAMPLES)])
    given = {name: torch.from_numpy(array) for name, array in rows.items()}
    samples = Samples(inputs=given, labels=given.pop("labels"), task=data.task, seed=seed)
    config = saved_configuration(model_folder / "model")
    model = initial_model(config, request, model_folder / INIT_WEIGHTS)
    if data.task == SEQ2SEQ:
        check_decoder_inputs(model, given, samples.labels)
    uncompared = (check_reading(model, given, samples.labels, data.task), compare_step(graph, model, samples))
    if data.packed:
        check_packing(model, data)
    return tuple(filter(None, uncompared))


def check_decoder_inputs(model: nn.Module, given: Tensors, labels: torch.Tensor) -> None:
    """Refuse a model whose decoder would read something else of these labels than the data give it."""
    made: Any = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if made is None:
        return
    wanted, counted = made(labels=labels), labels != IGNORE_INDEX
    if not torch.equal(wanted[counted], given[DECODER_IDS][counted]):
        raise Refused(
            f"model: {type(model).__name__} begins what it writes with other tokens than its decoder_start_token_id, "
            "such as the code of a language, which is not built; take a model such as T5, BART, Marian or Pegasus"
        )


def needed_bytes(module: nn.Module) -> int:
    """Free memory that a comparison of this model needs, in bytes."""
    trained = [p for p in module.parameters() if p.requires_grad]
    held = (*module.parameters(), *module.buffers(), *trained, *trained)
    sizes = (max(t.element_size(), FLOAT32_BYTES) if t.is_floating_point() else t.element_size() for t in held)
    return int(HEADROOM * sum(t.numel() * size for t, size in zip(held, sizes, strict=True)))


def compare_step(graph: Graph, model: nn.Module, samples: Samples) -> str | None:
    """Compare one step of the recorded model with the model's own; Refused names what differs, and by how much.

    Returns a sentence if the loss that the model computes by itself could not be compared with the task's.

    `model` is the whole model with the weights that training starts from, on the CPU; its gradients and the running
    statistics of its batch norms are as before afterwards.
    """
    pair = ModelAndRecording(graph, model.train())
    with torch.random.fork_rng(devices=[]):
        own = pair.step(samples)
        uncompared = _check_loss(pair, samples)
        apart = distances(pair.step(samples, recorded=True), own)
        if not any(apart.values()):
            return uncompared
        scale = {name: _norm(tensor) for name, tensor in own.items()}
        own.clear()
        bounds = _bounds(pair, samples, scale)
    beyond = {name: d for name, d in apart.items() if not d <= bounds[name]}
    if beyond:
        raise Refused(_in_words(model, beyond, scale, pair.trained))
    return uncompared


class ModelAndRecording:
    """A model and its recording, which share modules and weights."""

    def __init__(self, graph: Graph, model: nn.Module) -> None:
        self._model = model
        whole = without_device(graph)
        self._segment = SegmentRunner(whole, tuple(unit.name for unit in whole.units), model, torch.device("cpu"))
        self.trained = {name: p for name, p in model.named_parameters() if p.requires_grad}

    def step(self, samples: Samples, recorded: bool = False) -> Tensors:
        """Output, loss, every trained parameter's gradient (zeros where it has none) and every buffer of one step."""
        self._model.zero_grad(set_to_none=True)
        kept = self._buffers()
        torch.manual_seed(samples.seed)
        if recorded:
            output = self._recorded(samples)
        else:
            with computing_in(self._model, self._segment.graph.compute):
                output = self._own(samples)
        loss = loss_sum(output, samples.labels, samples.task)
        if loss.requires_grad:
            (loss / max(1, count_targets(samples.labels.numpy(), samples.task))).backward()
        found = {OUTPUT: output.detach(), LOSS: loss.detach()}
        found |= {name: torch.zeros(()) if p.grad is None else p.grad for name, p in self.trained.items()}
        found |= self._buffers()
        self._model.zero_grad(set_to_none=True)
        self._put_back(kept)
        return found

    def own_loss(self, samples: Samples) -> tuple[float, torch.Tensor] | None:
        """Return the loss that the model computes by itself when it is given labels, and the task's summed loss of its
        output, both in the weights' own type; None if it is given none. An error of its own passes through.
        """
        whole: Any = self._model
        if "labels" not in inspect.signature(getattr(whole, "get_base_model", lambda: whole)().forward).parameters:
            return None
        kept = self._buffers()
        torch.manual_seed(samples.seed)
        try:
            with torch.no_grad():
                result: Any = self._model(**samples.inputs, labels=samples.labels)
        finally:
            self._put_back(kept)
        return float(result.loss), loss_sum(result.logits, samples.labels, samples.task)

    def _buffers(self) -> Tensors:
        return {name: buffer.clone() for name, buffer in self._model.named_buffers()}

    def _put_back(self, buffers: Tensors) -> None:
        with torch.no_grad():
            for name, buffer in self._model.named_buffers():
                buffer.copy_(buffers[name])

    def _own(self, samples: Samples) -> torch.Tensor:
        dtype = computed_type(self._segment.graph.compute)
        result: Any = self._model(**{name: in_type(value, dtype) for name, value in samples.inputs.items()})
        output: torch.Tensor = result.logits if hasattr(result, "logits") else pytree.tree_leaves(result)[0]
        return output

    def _recorded(self, samples: Samples) -> torch.Tensor:
        graph = self._segment.graph
        values = {number: samples.inputs[name] for name, number in graph.inputs.items()}
        self._segment.drop_copies()
        return self._segment.run(values, len(samples.labels))[graph.output]


def _check_loss(pair: ModelAndRecording, samples: Samples) -> str | None:
    """Refuse a model whose own loss is not the task's, such as one with an auxiliary term; returns a sentence if it
    has one that could not be computed."""
    try:
        found = pair.own_loss(samples)
    except Exception as error:  # of the model's own code
        return (
            f"the model's own loss was not compared with that of {samples.task}, because the model does not compute it "
            f"of these samples ({first_line(error)[:160]}); what it might add to the task's loss is not trained"
        )
    if found is None:
        return None
    own, summed = found
    mean = float(summed) / max(1, count_targets(samples.labels.numpy(), samples.task))
    eps = max(torch.finfo(summed.dtype).eps, torch.finfo(torch.float32).eps)  # causal models lose in float32
    if abs(own - mean) > FACTOR * eps * abs(mean):
        raise Refused(
            f"model: its own loss is {own:.6g}, where the cross entropy of {samples.task} is {mean:.6g}; only the "
            "latter can be trained here. If a setting adds to its loss, switch that off in model.config"
        )
    return None


def _bounds(pair: ModelAndRecording, samples: Samples, scale: Mapping[str, float]) -> dict[str, float]:
    """Accepted distance of each tensor: FACTOR times its change under other sample orders, or the median relative
    change if that is larger; 0 if a step draws random numbers that cannot be switched off."""
    floors = dict.fromkeys(scale, 0.0)
    count = len(samples.labels)
    with WithoutDropout():
        torch.manual_seed(samples.seed)
        before = torch.random.get_rng_state()
        own = pair.step(samples)
        if not torch.equal(before, torch.random.get_rng_state()):
            return floors
        for number in range(ORDERS):
            order = torch.randperm(count, generator=torch.Generator().manual_seed(number))
            moved = pair.step(samples.ordered(order))
            moved[OUTPUT] = moved[OUTPUT][order.argsort()]
            for name, distance in distances(moved, own).items():
                floors[name] = max(floors[name], distance)
    shares = sorted(floors[name] / scale[name] for name in pair.trained if scale[name])
    usual = shares[len(shares) // 2] if shares else 0.0
    return {name: FACTOR * max(floors[name], usual * scale[name]) for name in scale}


def distances(found: Tensors, own: Tensors) -> dict[str, float]:
    """L2 distance of each tensor from the model's own; 0 where all bits agree."""
    return {name: 0.0 if _same(found[name], own[name]) else _norm(found[name].double() - own[name]) for name in own}


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    if torch.equal(a, b):
        return True
    return a.shape == b.shape and bool((a.isnan() == b.isnan()).all()) and torch.equal(a.nan_to_num(), b.nan_to_num())


def _norm(tensor: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor.to(torch.float64)))


def _in_words(
    model: nn.Module, beyond: Mapping[str, float], scale: Mapping[str, float], trained: Mapping[str, Any]
) -> str:
    share = {name: distance / (scale[name] or distance) for name, distance in beyond.items()}
    worst = max(share, key=lambda name: share[name])
    gradients = sum(name in trained for name in beyond)
    whole = getattr(model, "get_base_model", lambda: model)()
    others = [f"{name} ({share[name]:.0e} of it)" for name in (OUTPUT, LOSS) if name in beyond]
    told = [*others, f"{gradients} of {len(trained)} gradients"] if gradients else others
    return (
        f"model: a step of the recorded {type(whole).__name__} differs from the model's own in "
        f"{', '.join(told)}, most in {worst} by {share[worst]:.0e} of its size, which rounding does not explain; "
        "this model cannot be cut into units, so it cannot be trained here"
    )
