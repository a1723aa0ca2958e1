"""The whole model on a device: who is fastest at it, and plans of one stage."""

from collections.abc import Sequence

import numpy as np

from fleetune.errors import Infeasible
from fleetune.solving.hpp.case import Case, Floats
from fleetune.solving.hpp.draft import Draft, Stage


def whole_model_s(case: Case) -> Floats:
    """[device]: forward and backward of one micro-batch through all layers."""
    result: Floats = case.forward_s[:, -1, -1] + case.backward_s[:, -1, -1]
    return result


def fastest(case: Case, count: int) -> list[int]:
    """The `count` devices fastest at the whole model, in the order given; of equals the earlier."""
    return sorted(np.argsort(whole_model_s(case), kind="stable")[:count].tolist())


def one_stage(case: Case, method: str, devices: Sequence[int], samples: Sequence[int]) -> Draft:
    """All layers as one stage. Infeasible where the warm-ups are listed for another number of stages."""
    listed = case.problem.warmup
    if not isinstance(listed, str) and len(listed) != 1:
        raise Infeasible(
            f"warmup: {list(listed)} fixes {len(listed)} stages and {method} makes plans of one; list one K, name a "
            "policy or choose another method"
        )
    return Draft((Stage(0, case.layers, tuple(devices), tuple(samples)),), tuple(case.warmups(1)))
