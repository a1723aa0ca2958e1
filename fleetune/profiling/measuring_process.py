"""The measuring process of a device: `python -m fleetune.profiling.measuring_process --task FILE`.

Its result is the last JSON line on stdout; `messages` describes all lines.
"""

import argparse
import json
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fleetune import filesystem
from fleetune.contracts import json_io
from fleetune.data.prepared_data import PreparedData
from fleetune.errors import FleetuneError, TryAgain
from fleetune.launching.process_limits import OUT_OF_MEMORY_EXIT_CODE, is_out_of_memory
from fleetune.models.graph import Graph, parse_graph
from fleetune.models.init_weights import INIT_WEIGHTS
from fleetune.models.process_memory import resident_bytes
from fleetune.models.segment import SegmentRunner, Values
from fleetune.models.skeleton import base_skeleton, saved_configuration, skeleton
from fleetune.models.source import source_folder
from fleetune.models.units import state_by_unit
from fleetune.models.weights import WeightReader
from fleetune.profiling.codec_timing import codec_times
from fleetune.profiling.head_scores import score_heads
from fleetune.profiling.memory import Workspace, fitting_sizes, idle_worker_bytes, unit_memory, windows
from fleetune.profiling.messages import (
    ERROR,
    LOADING,
    MEASURING,
    PROGRESS,
    DeviceMeasurement,
    UnitMeasurement,
    to_message,
)
from fleetune.profiling.task import MeasureTask
from fleetune.profiling.unit_timing import TimingSettings, UnitCost, elapsed_s, measure_units, read_clock

UNIT_MEMORY_SHARE = 0.6
"""Share of free memory used for units; the rest is for buffers of kernels and the allocator's slack."""


def main() -> int:
    """Measure every unit (or score every head), print progress, and print the result."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--task", type=Path, required=True)
    try:
        task = json_io.read(MeasureTask, arguments.parse_args().task)
        torch.set_num_threads(task.threads)
        if task.scoring is None:
            _measure(task)
        else:
            _send(to_message(score_heads(task, task.scoring, resident_bytes(), _send)))
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
    runtime_bytes = idle_worker_bytes()
    needs = unit_memory(graph, module)
    _send({"event": LOADING, "runtime_bytes": runtime_bytes, "unit_bytes": max(n.state_bytes for n in needs.values())})
    budget_bytes = int(max(0, task.memory_bytes - resident_bytes()) * UNIT_MEMORY_SHARE)
    sizes = fitting_sizes(needs, task.batch_sizes, budget_bytes)
    shares = windows(needs, sizes[-1], budget_bytes)
    workspace = Workspace()

    def load(units: list[str]) -> dict[str, SegmentRunner]:
        workspace.begin()
        weights = WeightReader(base_skeleton(config, task.model), source_folder(task.model), folder / INIT_WEIGHTS)
        whole = skeleton(config, task.model)  # every unit takes its own modules out of it
        made = {unit: SegmentRunner(graph, (unit,), whole, device) for unit in units}
        for segment in made.values():
            segment.load(weights)
            segment.train()
        return made

    def inputs(size: int) -> Values:
        rows = data.rows("train", np.arange(size) % data.size("train"))
        return {n: torch.from_numpy(rows[name]).to(device) for name, n in graph.inputs.items() if name in rows}

    settings = TimingSettings(batch_sizes=sizes, passes=task.passes, cores=task.cores)
    held = _held_bytes(graph, module)
    first = load(shares[0])
    _send({"event": MEASURING})
    start = read_clock(settings)
    costs: dict[str, UnitCost] = {}
    ends = {share[-1]: share for share in shares}
    for unit, cost in measure_units(graph, shares, lambda w: first if w is shares[0] else load(w), inputs, settings):
        costs[unit] = cost
        if unit in ends:
            workspace.end(sum(held[name] + costs[name].activation_bytes[-1] for name in ends[unit]))
        _send({"event": PROGRESS, "done": len(costs), "total": len(graph.units)})
    profiling_s = elapsed_s(start, settings)
    if device.type == "cpu":
        runtime_bytes += workspace.bytes
    answer = DeviceMeasurement(
        runtime_bytes=runtime_bytes,
        profiling_s=profiling_s,
        units=tuple(_unit_measurement(unit.name, costs[unit.name], sizes, task.batch_sizes) for unit in graph.units),
        codecs=codec_times(device, settings, getattr(torch, task.model.precision)) if task.codecs else (),
    )
    _send(to_message(answer))


def _unit_measurement(unit: str, cost: UnitCost, measured: tuple[int, ...], asked: tuple[int, ...]) -> UnitMeasurement:
    """Costs at every requested batch size; those that do not fit in memory are extrapolated."""

    def whole(amounts: list[int]) -> tuple[int, ...]:
        return tuple(round(amount) for amount in extrapolated(amounts, measured, asked))

    return UnitMeasurement(
        name=unit,
        forward_s=extrapolated(cost.forward_s, measured, asked),
        backward_s=extrapolated(cost.backward_s, measured, asked),
        forward_usual=median_ratio(cost.forward_median_s, cost.forward_s),
        backward_usual=median_ratio(cost.backward_median_s, cost.backward_s),
        activation_bytes=whole(cost.activation_bytes),
        flops=whole(cost.flops),
    )


def extrapolated(amounts: Sequence[float], measured: tuple[int, ...], asked: tuple[int, ...]) -> tuple[float, ...]:
    """Return the amounts at all sizes of `asked`, which begin with the `measured` ones.

    Larger sizes are extrapolated along the line through the last two (never decreasing), or in proportion if one size
    was measured.
    """
    last, size = amounts[-1], measured[-1]
    slope = max(0.0, (last - amounts[-2]) / (size - measured[-2])) if len(measured) > 1 else last / size
    return (*amounts, *(last + slope * (more - size) for more in asked[len(measured) :]))


def median_ratio(median_s: list[float], minimum_s: list[float]) -> float:
    """Median pass time over minimum pass time, over all batch sizes; 1 for units that take no time."""
    return max(1.0, sum(median_s) / sum(minimum_s)) if sum(minimum_s) > 0 else 1.0


def _held_bytes(graph: Graph, module: nn.Module) -> dict[str, int]:
    """unit -> bytes of weights, buffers and gradients of trained weights."""
    sizes = {n: t.numel() * t.element_size() * (1 + t.requires_grad) for n, t in module.named_parameters()}
    sizes |= {n: t.numel() * t.element_size() for n, t in module.named_buffers()}
    return {unit: sum(sizes[name] for name in names) for unit, names in state_by_unit(graph, module).items()}


def _send(event: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
