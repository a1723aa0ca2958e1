"""One device's measuring process: `python -m fleetune.profiling.worker --task FILE`; the answer is a line of JSON."""

import argparse
import json
import sys
import traceback
from pathlib import Path

import numpy as np
import torch
from transformers import PretrainedConfig

from fleetune.contracts import wire
from fleetune.contracts.config.model import ModelRequest
from fleetune.contracts.record import record
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
from fleetune.profiling.measure import Effort, UnitCost, measure


@record
class MeasureTask:
    """What a measuring process is given."""

    device: str
    model: ModelRequest
    profile_folder: str
    data_folder: str
    accelerator: str
    cores: float | None
    memory_bytes: int
    batch_sizes: tuple[int, ...]
    passes: int


def main() -> int:
    """Measure every unit, tell progress line by line, and print the costs."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--task", type=Path, required=True)
    try:
        task = wire.read(MeasureTask, arguments.parse_args().task)
        torch.set_num_threads(1)
        _measure(task)
    except Exception as error:
        _say({"event": "error", "message": f"{type(error).__name__}: {error}"[:2000]})
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
    effort = Effort(batch_sizes=task.batch_sizes, passes=task.passes, cores=task.cores)

    def load(units: list[str]) -> dict[str, Segment]:
        weights = Weights(base_skeleton(config, task.model), source_folder(task.model), folder / START)
        made = {}
        for unit in units:
            made[unit] = Segment(graph, (unit,), skeleton(config, task.model), place)
            made[unit].load(weights)
            made[unit].train()
        return made

    def inputs(size: int) -> Values:
        rows = data.rows("train", np.arange(size) % data.size("train"))
        return {n: torch.from_numpy(rows[name]).to(place) for name, n in graph.inputs.items() if name in rows}

    windows = _windows(graph, config, task, runtime_bytes)
    costs: dict[str, UnitCost] = {}
    for unit, cost in measure(graph, windows, load, inputs, effort):
        costs[unit] = cost
        _say({"event": "progress", "done": len(costs), "total": len(graph.units)})
    _say(
        {
            "event": "costs",
            "runtime_bytes": runtime_bytes + _workspace_bytes(graph, config, task, costs, len(windows), runtime_bytes),
            "units": [
                {
                    "name": unit.name,
                    "forward_s": costs[unit.name].forward_s,
                    "backward_s": costs[unit.name].backward_s,
                    "activation_bytes": costs[unit.name].activation_bytes,
                    "flops": costs[unit.name].flops,
                }
                for unit in graph.units
            ],
        }
    )


def _windows(graph: Graph, config: PretrainedConfig, task: MeasureTask, runtime_bytes: int) -> list[list[str]]:
    """Consecutive units whose weights (twice, for gradients) fill at most half of what the device has left."""
    module = skeleton(config, task.model)
    sizes = {n: t.numel() * t.element_size() for n, t in (*module.named_parameters(), *module.named_buffers())}
    budget = max(0, task.memory_bytes - runtime_bytes) // 2
    windows: list[list[str]] = [[]]
    filled = 0
    for unit, names in state_by_unit(graph, module).items():
        size = 2 * sum(sizes[n] for n in names)
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
