"""The measuring process of a device: `python -m fleetune.profiling.measuring_process --task FILE`.

Its result is the last JSON line on stdout; `messages` describes all lines.
"""

import argparse
import json
import statistics
import sys
import traceback
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn
from transformers import PretrainedConfig

from fleetune import filesystem
from fleetune.contracts import json_io
from fleetune.contracts.profile import Spread
from fleetune.data.prepared_data import LABELS, Array, PreparedData
from fleetune.errors import FleetuneError, TryAgain
from fleetune.launching.process_limits import OUT_OF_MEMORY_EXIT_CODE, is_out_of_memory
from fleetune.models.attention_heads import attention_heads, find_blocks
from fleetune.models.compute_copies import computed_type
from fleetune.models.device_memory import code_bytes, compute_on, held_bytes
from fleetune.models.gates import gate_segment
from fleetune.models.graph import Graph, parse_graph
from fleetune.models.init_weights import INIT_WEIGHTS
from fleetune.models.loss import loss_sum
from fleetune.models.segment import SegmentRunner, Values
from fleetune.models.skeleton import saved_configuration, skeleton
from fleetune.models.units import state_by_unit
from fleetune.models.weights import weight_reader
from fleetune.profiling.between_passes import MessageWait, Shapes, update_times
from fleetune.profiling.codec_timing import codec_times, feedback_s_per_byte
from fleetune.profiling.gate_times import HeadedBlock, gate_times
from fleetune.profiling.head_scores import score_heads
from fleetune.profiling.memory import fitting_sizes, idle_worker_bytes, unit_memory, windows
from fleetune.profiling.messages import (
    ERROR,
    LOADING,
    MEASURING,
    PROGRESS,
    DeviceMeasurement,
    UnitMeasurement,
    to_message,
)
from fleetune.profiling.partial_passes import partial_passes
from fleetune.profiling.subnet_parts import SubnetParts
from fleetune.profiling.task import MeasureTask
from fleetune.profiling.timing import (
    PassLog,
    TimedData,
    TimingSettings,
    UnitCost,
    elapsed_s,
    measure_units,
    read_clock,
)

SPREAD_QUANTILES = (0.05, 0.95)
LEAST_PASSES = 5
LEAST_S = 0.5
"""Wall time of the passes of each batch size."""
UNIT_MEMORY_SHARE = 0.6
"""Share of free memory used for units; the rest is for buffers of kernels and the allocator's slack."""


def main() -> int:
    """Measure every unit (or score every head), print progress, and print the result."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--task", type=Path, required=True)
    try:
        task = json_io.read(MeasureTask, arguments.parse_args().task)
        torch.set_num_threads(task.threads)
        compute_on(torch.device(task.accelerator), task.memory_bytes)
        if task.scoring is None:
            _measure(task)
        else:
            _send(to_message(score_heads(task, task.scoring, held_bytes(torch.device(task.accelerator)), _send)))
    except Exception as error:
        if is_out_of_memory(error):
            sys.stderr.write(traceback.format_exc())
            return OUT_OF_MEMORY_EXIT_CODE  # whoever started it says what there was
        known = error if isinstance(error, FleetuneError) else filesystem.disk_error(error, filesystem.folders())
        said = str(known) if known is not None else f"{type(error).__name__}: {error}"
        _send({"event": ERROR, "message": said[:2000]})
        with suppress(OSError):  # the log may lie on a full disk
            sys.stderr.write(traceback.format_exc())
        return known.exit_code if known is not None else TryAgain.exit_code
    return 0


def _measure(task: MeasureTask) -> None:
    folder = Path(task.model_folder)
    graph = parse_graph((folder / "graph.json").read_bytes(), "graph.json")
    config = saved_configuration(folder / "model")
    device = torch.device(task.accelerator)
    data = PreparedData(Path(task.data_folder))
    module = skeleton(config, task.model)
    runtime_bytes = idle_worker_bytes(device)
    needs = unit_memory(graph, module)
    _send({"event": LOADING, "runtime_bytes": runtime_bytes, "unit_bytes": max(n.state_bytes for n in needs.values())})
    budget_bytes = int(max(0, task.memory_bytes - held_bytes(device)) * UNIT_MEMORY_SHARE)
    sizes = fitting_sizes(needs, task.batch_sizes, budget_bytes)
    shares = windows(needs, sizes[-1], budget_bytes)

    def load(units: list[str], gates: Mapping[str, str] | None = None) -> dict[str, SegmentRunner]:
        weights = weight_reader(config, task.model, folder / INIT_WEIGHTS)
        whole = skeleton(config, task.model)  # every unit takes its own modules out of it
        made = {unit: SegmentRunner(graph, (unit,), whole, device) for unit in units}
        for segment in made.values():
            if gates:
                gate_segment(segment, gates, module, config)
            segment.load(weights)
            segment.train()
        return made

    settings = TimingSettings(batch_sizes=sizes, passes=task.passes, least_s=LEAST_S, cores=task.cores)
    wait = MessageWait()
    log, first_code_bytes = PassLog(after_pass=wait.measure), code_bytes(device)
    timed = _timed_data(data, graph, device)
    first = load(shares[0])
    _send({"event": MEASURING})
    start = read_clock(settings)
    costs: dict[str, UnitCost] = {}
    with wait:
        for unit, cost in measure_units(
            graph, shares, lambda w: first if w is shares[0] else load(w), timed, settings, log
        ):
            costs[unit] = cost
            _send({"event": PROGRESS, "done": len(costs), "total": len(graph.units)})
    gates = None
    if task.gates:
        block = _first_block(graph, module, config)
        gates = gate_times(block, load, timed.inputs(sizes[-1]), sizes[-1], settings)
    partial = partial_passes(graph, shares, load, timed, settings) if task.partial else None
    profiling_s = elapsed_s(start, settings)
    dtype = getattr(torch, task.model.precision)
    shapes = _trained_shapes(graph, module)
    like = torch.ones(1, dtype=dtype, device=device)
    half = computed_type(graph.compute)
    updates_s = update_times(shapes, task.optimizer, task.momentum, like, settings, half)
    answer = DeviceMeasurement(
        runtime_bytes=runtime_bytes + max(0, code_bytes(device) - first_code_bytes),
        profiling_s=profiling_s,
        units=tuple(
            replace(_unit_measurement(unit.name, costs[unit.name], sizes, task.batch_sizes), update_s=update_s)
            for unit, update_s in zip(graph.units, updates_s, strict=True)
        ),
        codecs=codec_times(device, settings, half or dtype) if task.codecs else (),
        feedback_s_per_byte=feedback_s_per_byte(device, settings, half or dtype) if task.codecs else 0.0,
        stretch=statistics.median(log.stretches),
        spread=spread_of(log.relative),
        message_wait_s=wait.mean_s,
        gates=gates,
        partial=partial,
    )
    _send(to_message(answer))


def _first_block(graph: Graph, module: nn.Module, config: PretrainedConfig) -> HeadedBlock:
    """Return the first block with heads; all blocks of a model are alike."""
    found = attention_heads(find_blocks(graph, module, config))
    heads = tuple(head for head in found if head.block == found[0].block)
    parts = SubnetParts(graph, module)
    return HeadedBlock(graph=graph, heads=heads, parts={head.name: parts.of(head) for head in heads})


def _timed_data(data: PreparedData, graph: Graph, device: torch.device) -> TimedData:
    """Inputs, labels and loss of the first training samples, as a worker reads and computes them."""

    def rows(size: int, names: Collection[str]) -> dict[str, Array]:
        return data.rows("train", np.arange(size) % data.size("train"), names)

    def inputs(size: int) -> Values:
        found = rows(size, graph.inputs)
        return {n: torch.from_numpy(found[name]).to(device) for name, n in graph.inputs.items() if name in found}

    def loss(size: int, output: torch.Tensor) -> torch.Tensor:
        mean = loss_sum(output, torch.from_numpy(rows(size, (LABELS,))[LABELS]).to(device), data.task) / size
        float(mean.detach())  # a worker reports it
        return mean

    return TimedData(inputs=inputs, loss=loss)


def _unit_measurement(unit: str, cost: UnitCost, measured: tuple[int, ...], asked: tuple[int, ...]) -> UnitMeasurement:
    """Costs at every requested batch size; those that do not fit in memory are extrapolated."""

    def whole(amounts: list[int]) -> tuple[int, ...]:
        return tuple(round(amount) for amount in extrapolated(amounts, measured, asked))

    return UnitMeasurement(
        name=unit,
        forward_s=extrapolated(cost.forward_s, measured, asked),
        backward_s=extrapolated(cost.backward_s, measured, asked),
        forward_usual=usual_ratio(cost.forward_usual_s, cost.forward_s),
        backward_usual=usual_ratio(cost.backward_usual_s, cost.backward_s),
        activation_bytes=whole(cost.activation_bytes),
        workspace_bytes=whole(cost.workspace_bytes),
        flops=whole(cost.flops),
    )


def extrapolated(amounts: Sequence[float], measured: tuple[int, ...], asked: tuple[int, ...]) -> tuple[float, ...]:
    """Return the amounts at all sizes of `asked`, which begin with the `measured` ones.

    Larger sizes are extrapolated along the line through the first and the last, whose slope a stall of the machine at
    one size changes least; in proportion where that line does not rise, or one size was measured.
    """
    last, size = amounts[-1], measured[-1]
    rise = last - amounts[0]
    slope = rise / (size - measured[0]) if rise > 0 else last / size
    return (*amounts, *(last + slope * (more - size) for more in asked[len(measured) :]))


def usual_ratio(usual_s: list[float], minimum_s: list[float]) -> float:
    """Usual time over minimum time, over all batch sizes; 1 for units that take no time."""
    return max(1.0, sum(usual_s) / sum(minimum_s)) if sum(minimum_s) > 0 else 1.0


def spread_of(relative: Sequence[float]) -> Spread | None:
    """Quantiles of pass durations relative to their medians; None for fewer than LEAST_PASSES passes.

    Neither bound lies on the other side of the median.
    """
    if len(relative) < LEAST_PASSES:
        return None
    low, high = np.quantile(relative, SPREAD_QUANTILES).tolist()
    return Spread(low=min(low, 1.0), high=max(high, 1.0))


def _trained_shapes(graph: Graph, module: nn.Module) -> list[Shapes]:
    """Return the elements of each trained tensor, unit by unit."""
    parameters, state = dict(module.named_parameters()), state_by_unit(graph, module)
    return [
        tuple(parameters[n].numel() for n in state[unit.name] if n in parameters and parameters[n].requires_grad)
        for unit in graph.units
    ]


def _send(event: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
