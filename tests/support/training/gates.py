"""Gates of the heads of a BERT, and the same by masks in the whole model."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from fleetune.contracts.plan import Gate, Plan
from tests.support.training.control_comparison import whole_model
from tests.support.training.lane_training import LaneModel
from tests.support.training.runs import Prepared

GATES = {"0#0": "121", "0#1": "312", "1#0": "133", "1#1": "222"}


def gates_of_bert() -> tuple[Gate, ...]:
    """GATES of its subnets."""
    return tuple(Gate(subnet=f"bert.encoder.layer.{name}", operations=row) for name, row in GATES.items())


def masked(ready: Prepared, chain: Plan) -> LaneModel:
    """The whole BERT with the heads of GATES masked."""
    lane = LaneModel(ready, whole_model(ready), chain, 0)
    for block in (0, 1):
        rows = [GATES[f"{block}#{head}"] for head in (0, 1)]
        for name in ("attention.output.dense", "output.dense"):
            mask_heads(lane, lane.model.get_submodule(f"bert.encoder.layer.{block}.{name}"), rows)
    return lane


def mask_heads(lane: LaneModel, layer: nn.Module, rows: list[str]) -> None:
    """Let a layer that sums over heads read only full heads; what it makes of forward-only ones is a constant."""

    def forward(given: torch.Tensor) -> torch.Tensor:
        weight, bias = layer.weight, layer.bias  # in mixed precision, what stands in for the parameters
        parts = torch.tensor_split(torch.arange(given.shape[-1]), len(rows))
        masks = {operation: torch.zeros(given.shape[-1], dtype=given.dtype) for operation in "123"}
        for part, row in zip(parts, rows, strict=True):
            masks[row[lane.here["micro_batch"]]][part] = 1
        once = nn.functional.linear(given * masks["2"], weight).detach()  # type: ignore[arg-type]
        return nn.functional.linear(given * masks["1"], weight, bias) + once  # type: ignore[arg-type]

    layer.forward = forward  # type: ignore[method-assign]


def gate(lane: LaneModel, plans: list[Plan]) -> None:
    """Let each round run the heads as the gates of its plan say."""
    for block in (0, 1):
        for name in ("attention.output.dense", "output.dense"):
            layer = lane.model.get_submodule(f"bert.encoder.layer.{block}.{name}")
            by_round = []
            for made in plans:
                rows: Mapping[str, str] = {each.subnet: each.operations for each in made.gates}
                mask_heads(lane, layer, [rows[f"bert.encoder.layer.{block}#{head}"] for head in (0, 1)])
                by_round.append(layer.forward)

            def forward(given: Any, by_round: list[Any] = by_round) -> Any:
                return by_round[lane.here["round"]](given)

            layer.forward = forward
