"""One device's measuring process: `python -m fleetune.profiling.worker --task FILE`; the answer is a line of JSON."""

import argparse
import json
import sys
import traceback
from pathlib import Path

import numpy as np
import torch
from torch import nn
from transformers import PretrainedConfig

from fleetune.contracts import wire
from fleetune.data import PreparedData
from fleetune.errors import FleetuneError, TryAgain
from fleetune.models.graph import Graph, parse_graph
from fleetune.models.memory import peak_memory_bytes
from fleetune.models.segment import Segment, Values
from fleetune.models.skeleton import base_skeleton, saved_configuration, skeleton
from fleetune.models.source import source_folder
from fleetune.models.start import START
from fleetune.models.tied import state_by_unit
from fleetune.models.weights import Weights
from fleetune.profiling.answer import ERROR, LOADING, MEASURING, PROGRESS, Answer, UnitAnswer, event_of
from fleetune.profiling.measure import Effort, UnitCost, measure, now, since
from fleetune.profiling.scoring import score
from fleetune.profiling.task import MeasureTask


def main() -> int:
    """Measure every unit (or score every head), tell progress line by line, and print the answer."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--task", type=Path, required=True)
    try:
        task = wire.read(MeasureTask, arguments.parse_args().task)
        torch.set_num_threads(1)
        if task.scoring is None:
            _measure(task)
        else:
            _say(event_of(score(task, task.scoring, _resident_bytes(), _say)))
    except Exception as error:
        _say({"event": ERROR, "message": f"{type(error).__name__}: {error}"[:2000]})
        sys.stderr.write(traceback.format_exc())
        return error.exit_code if isinstance(error, FleetuneError) else TryAgain.exit_code
    return 0


def _measure(task: MeasureTask) -> None:
    folder = Path(task.profile_folder)
    graph = parse_graph((folder / "graph.json").read_bytes(), "graph.json")
    config = saved_configuration(folder / "model")
    place = torch.device(task.accelerator)
    data = PreparedData(Path(task.data_folder))
    runtime_bytes = _resident_bytes()
    sizes = _unit_bytes(graph, skeleton(config, task.model))
    windows = _windows(sizes, max(0, task.memory_bytes - runtime_bytes) // 2)
    _say({"event": LOADING, "runtime_bytes": runtime_bytes, "unit_bytes": max(sizes.values())})

    def load(units: list[str]) -> dict[str, Segment]:
        weights = Weights(base_skeleton(config, task.model), source_folder(task.model), folder / START)
        whole = skeleton(config, task.model)  # every unit takes its own modules out of it
        made = {unit: Segment(graph, (unit,), whole, place) for unit in units}
        for segment in made.values():
            segment.load(weights)
            segment.train()
        return made

    def inputs(size: int) -> Values:
        rows = data.rows("train", np.arange(size) % data.size("train"))
        return {n: torch.from_numpy(rows[name]).to(place) for name, n in graph.inputs.items() if name in rows}

    effort = Effort(batch_sizes=task.batch_sizes, passes=task.passes, cores=task.cores)
    first = load(windows[0])
    _say({"event": MEASURING})
    start = now(effort)
    costs: dict[str, UnitCost] = {}
    for unit, cost in measure(graph, windows, lambda w: first if w is windows[0] else load(w), inputs, effort):
        costs[unit] = cost
        _say({"event": PROGRESS, "done": len(costs), "total": len(graph.units)})
    profiling_s = since(start, effort)
    workspace_bytes = _workspace_bytes(graph, config, task, costs, len(windows), runtime_bytes)
    units = tuple(_answer(unit.name, costs[unit.name]) for unit in graph.units)
    _say(event_of(Answer(runtime_bytes=runtime_bytes + workspace_bytes, profiling_s=profiling_s, units=units)))


def _answer(unit: str, cost: UnitCost) -> UnitAnswer:
    return UnitAnswer(
        name=unit,
        forward_s=tuple(cost.forward_s),
        backward_s=tuple(cost.backward_s),
        forward_usual=ratio(cost.forward_usual_s, cost.forward_s),
        backward_usual=ratio(cost.backward_usual_s, cost.backward_s),
        activation_bytes=tuple(cost.activation_bytes),
        flops=tuple(cost.flops),
    )


def ratio(usual_s: list[float], least_s: list[float]) -> float:
    """How many times the minimum a usual pass takes, over all batch sizes; 1 for what takes no time."""
    return max(1.0, sum(usual_s) / sum(least_s)) if sum(least_s) > 0 else 1.0


def _unit_bytes(graph: Graph, module: nn.Module) -> dict[str, int]:
    """unit -> weights and buffers, twice, for gradients."""
    sizes = {n: t.numel() * t.element_size() for n, t in (*module.named_parameters(), *module.named_buffers())}
    return {unit: 2 * sum(sizes[n] for n in names) for unit, names in state_by_unit(graph, module).items()}


def _windows(sizes: dict[str, int], budget: int) -> list[list[str]]:
    """Consecutive units that fit into the budget together; one that alone does not is a window all the same."""
    windows: list[list[str]] = [[]]
    filled = 0
    for unit, size in sizes.items():
        if windows[-1] and filled + size > budget:
            windows.append([])
            filled = 0
        windows[-1].append(unit)
        filled += size
    return windows


def _workspace_bytes(
    graph: Graph, config: PretrainedConfig, task: MeasureTask, costs: dict[str, UnitCost], windows: int, idle_bytes: int
) -> int:
    """What computing took beyond weights and kept activations: buffers of kernels, copies, the allocator's slack.

    Known only where all units were held at once; a device measured window by window counts none.
    """
    if windows > 1 or torch.device(task.accelerator).type != "cpu":
        return 0
    module = skeleton(config, task.model)
    trained = [p for p in module.parameters() if p.requires_grad]  # counted twice: their gradients are held too
    held_bytes = sum(t.numel() * t.element_size() for t in (*module.parameters(), *module.buffers(), *trained))
    kept_bytes = sum(cost.activation_bytes[-1] for cost in costs.values())
    return max(0, int(peak_memory_bytes(torch.device("cpu"))) - idle_bytes - int(held_bytes) - kept_bytes)


def _resident_bytes() -> int:
    """Memory of this process now, before it holds any unit."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


def _say(event: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
