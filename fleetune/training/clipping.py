"""Norms of gradients: each must be finite before a round is committed, and all together say how far to clip.

Clipping does what torch's clip_grad_norm_ does on the whole model, to the last bit: the norm of the norms of single
tensors, in the order of the model's parameters and in the gradients' own precision, wherever the tensors are.
"""

import base64
import functools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from fleetune.contracts.run_config import TrainingRequest
from fleetune.errors import Refused
from fleetune.training.exchange import DTYPES


def gradient_norms(gradients: Mapping[str, torch.Tensor], round: int) -> dict[str, torch.Tensor]:
    """L2 norm of each gradient, by name; Refused naming the first gradient that is not finite."""
    if not gradients:
        return {}
    norms = dict(zip(gradients, torch._foreach_norm(list(gradients.values())), strict=True))
    if not bool(torch.stack(list(norms.values())).isfinite().all()):
        for name, gradient in gradients.items():  # a norm may overflow though every number is finite
            if not bool(gradient.isfinite().all()):
                raise Refused(
                    f"training: the gradient of {name} in round {round} is not finite; choose a smaller learning_rate, "
                    "or clip_norm"
                )
    return norms


def packed(norms: Mapping[str, torch.Tensor], order: Mapping[str, int]) -> dict[str, Any]:
    """Norms for a message's header, 16 bytes each; `order`: parameter -> its place in the model."""
    dtype = torch.stack(list(norms.values())).dtype if norms else torch.float32
    places = np.array([order[name] for name in norms], dtype="<i4")
    values = np.array([float(norm) for norm in norms.values()], dtype="<f8")
    return {"dtype": str(dtype).removeprefix("torch."), "places": _text(places), "values": _text(values)}


def total_norm(reports: Iterable[Mapping[str, Any]]) -> torch.Tensor:
    """Global L2 norm of what all devices have packed; 0 where nobody has a gradient."""
    norms: dict[int, float] = {}
    dtypes: list[torch.dtype] = []
    for report in reports:
        places = np.frombuffer(base64.b64decode(report["places"]), dtype="<i4").tolist()
        values = np.frombuffer(base64.b64decode(report["values"]), dtype="<f8").tolist()
        norms.update(zip(places, values, strict=True))
        dtypes += [DTYPES[report["dtype"]]] if places else []
    if not norms:
        return torch.tensor(0.0)
    dtype = functools.reduce(torch.promote_types, dtypes)
    return torch.linalg.vector_norm(torch.tensor([norms[place] for place in sorted(norms)], dtype=dtype))


def clip_scale(training: TrainingRequest, total: torch.Tensor) -> float:
    """What gradients are multiplied by so that their global norm is at most clip_norm."""
    if training.clip_norm is None:
        return 1.0
    return float(torch.clamp(training.clip_norm / (total + 1e-6), max=1.0))


def _text(numbers: np.ndarray) -> str:
    return base64.b64encode(numbers.tobytes()).decode()
