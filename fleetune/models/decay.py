"""Which parameters weight decay leaves alone: biases and norms, the same ones as in transformers' Trainer."""

import re

from torch import nn

SPARED = re.compile(r"bias|layernorm|rmsnorm|((^|\.)|_)norm($|\.)")
"""Found in the names, in lower case, of biases and of norms of all kinds that transformers' models have."""


def undecayed_parameters(model: nn.Module) -> frozenset[str]:
    """Return the names of the biases and norms of a model: by their names, and all of torch's LayerNorms.

    Batch norms that are called otherwise, such as `normalization`, decay, as in Trainer.
    """
    norms = {p for module in model.modules() if isinstance(module, nn.LayerNorm) for p in module.parameters()}
    return frozenset(n for n, p in model.named_parameters() if p in norms or SPARED.search(n.lower()))
