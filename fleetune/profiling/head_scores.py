"""Importance scores of every head, computed by forward and backward passes over the whole model."""

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fleetune.arrays import Ints
from fleetune.contracts.mixed_precision import FIRST_LOSS_SCALE, FP16
from fleetune.data.prepared_data import PreparedData, batch_indices
from fleetune.errors import Infeasible, Refused
from fleetune.formatting import gigabytes
from fleetune.launching.process_limits import CpuThrottle
from fleetune.models.attention_heads import AttentionHead, TransformerBlock, attention_heads, find_blocks
from fleetune.models.graph import parse_graph
from fleetune.models.head_scores import ScoreAccumulator, packed_layers, trained_parameters
from fleetune.models.init_weights import INIT_WEIGHTS
from fleetune.models.loss import count_targets, loss_sum
from fleetune.models.randomness import RandomContext
from fleetune.models.segment import SegmentRunner, Values
from fleetune.models.skeleton import saved_configuration, skeleton
from fleetune.models.weights import weight_reader
from fleetune.profiling.messages import LOADING, MEASURING, PROGRESS, Scores
from fleetune.profiling.task import MeasureTask, ScoringTask

Send = Callable[[dict[str, Any]], None]


def score_heads(task: MeasureTask, scoring: ScoringTask, runtime_bytes: int, send: Send) -> Scores:
    """Scores of every head over the first round's micro-batches; prints its memory needs, its start and progress."""
    folder, device = Path(task.model_folder), torch.device(task.accelerator)
    if device.type == "cuda":  # the same sums every time; to be set before its libraries are used
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
    graph = parse_graph((folder / "graph.json").read_bytes(), "graph.json")
    config = saved_configuration(folder / "model")
    module = skeleton(config, task.model)
    heads = attention_heads(find_blocks(graph, module, config))
    held_bytes = _held_bytes(module, heads)
    send({"event": LOADING, "runtime_bytes": runtime_bytes, "unit_bytes": held_bytes})
    if runtime_bytes + held_bytes > task.memory_bytes:
        raise Infeasible(
            f"scores need the whole model at once, {gigabytes(held_bytes)} with its gradients beside "
            f"{gigabytes(runtime_bytes)} of a worker, and it has {gigabytes(task.memory_bytes)}; give one device "
            "of the fleet more memory or leave profile.scores out"
        )
    segment = SegmentRunner(graph, tuple(unit.name for unit in graph.units), skeleton(config, task.model), device)
    segment.load(weight_reader(config, task.model, folder / INIT_WEIGHTS))
    segment.train()
    send({"event": MEASURING})
    accumulator, throttle = ScoreAccumulator(heads, segment.parameters), CpuThrottle(task.cores)
    data = PreparedData(Path(task.data_folder))
    losses = first_round_losses(segment, data, scoring)
    scale = FIRST_LOSS_SCALE if task.model.mixed_precision == FP16 else 1.0
    for number in range(scoring.micro_batches):
        with throttle.throttled():
            accumulator.add_loss(number, next(losses), scale)
        send({"event": PROGRESS, "done": number + 1, "total": scoring.micro_batches})
    return Scores(heads=accumulator.scores(), rows=tuple(int(row) for row in first_round_rows(data, scoring)))


def first_round_rows(data: PreparedData, scoring: ScoringTask) -> Ints:
    """Rows of the training split in the first round of one lane."""
    return batch_indices(data.size("train"), scoring.batch_samples, scoring.seed, 0)


def first_round_losses(segment: SegmentRunner, data: PreparedData, scoring: ScoringTask) -> Iterator[torch.Tensor]:
    """Yields the loss contribution of each micro-batch of the first round, with the samples and dropout of training.
    `segment` is the whole model."""
    samples, graph = scoring.micro_batch_samples, segment.graph
    rows = first_round_rows(data, scoring)
    targets = count_targets(data.rows("train", rows)["labels"], data.task)
    for number in range(scoring.micro_batches):
        chosen = data.rows("train", rows[number * samples : (number + 1) * samples])
        given = {name: torch.from_numpy(array).to(segment.device) for name, array in chosen.items()}
        values: Values = {node: given[name] for name, node in graph.inputs.items() if name in given}
        draws = RandomContext(scoring.seed, 0, number, 0, samples)
        outputs = segment.run(values, samples, draws)
        loss = loss_sum(outputs[graph.output], given["labels"], data.task) / max(1, targets)
        seen = float(loss.detach())
        if not math.isfinite(seen):
            raise Refused(f"micro-batch {number} of the first round has a loss of {seen}; nothing can be scored by it")
        yield loss
        del loss, outputs, values  # with the graph of a scaled backward, before the next one is made


def _held_bytes(module: nn.Module, heads: tuple[AttentionHead, ...]) -> int:
    """Bytes of weights, buffers and gradients of the scored parameters, and of one block's weights out of 4 bits."""
    parameters = dict(module.named_parameters())
    gradients = [parameters[name] for name in trained_parameters(heads, parameters)]
    held = sum(int(t.numel() * t.element_size()) for t in (*parameters.values(), *module.buffers(), *gradients))
    return held + max(_unpacked_bytes(block, parameters) for block in dict.fromkeys(head.block for head in heads))


def _unpacked_bytes(block: TransformerBlock, parameters: dict[str, nn.Parameter]) -> int:
    """Bytes of a block's weights in 4 bits once they are unpacked."""
    return sum(torch.float32.itemsize * math.prod(layer.shape) for layer in packed_layers(block, parameters))
