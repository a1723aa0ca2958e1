"""Parts of a segment that keep no activations: their backward runs their forward again (Chen et al.,
arXiv:1604.06174), by torch's own `checkpoint`.

Random draws are seeded per unit, so that the second forward computes the first one's values bit by bit.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint

Held = dict[int, Any]
"""Node of the graph -> its value."""


def run_recomputed(run: Callable[[Held], Held], given: Mapping[int, Any], modules: Iterable[nn.Module]) -> Held:
    """Return what `run` makes of the given values, of which alone it keeps what the backward needs.

    modules: those that `run` calls; running statistics are updated by the first forward only.
    """
    norms = [norm for module in modules for norm in module.modules() if isinstance(norm, _NormBase)]

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _without_statistics(norms)

    made: Held = checkpoint(
        lambda: run(dict(given)), use_reentrant=False, preserve_rng_state=False, context_fn=contexts
    )
    return made


@contextmanager
def _without_statistics(norms: Iterable[_NormBase]) -> Iterator[None]:
    """Let norms update copies of their running statistics."""
    before = [(norm, dict(norm._buffers)) for norm in norms]
    for norm, buffers in before:
        norm._buffers.update({name: None if each is None else each.clone() for name, each in buffers.items()})
    try:
        yield
    finally:
        for norm, buffers in before:
            norm._buffers.update(buffers)
