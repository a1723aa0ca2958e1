"""Relative errors: the norm of what a codec changes, divided by the norm of the tensor."""

from collections.abc import Iterator

import torch

from benchmarks.codecs.speed import CODED, RATIO, SHEET
from benchmarks.report import Figure
from fleetune.codecs import decode, encode
from fleetune.contracts.link_codecs import FORWARD_MASK, SPARSE


def errors(activation: torch.Tensor) -> Iterator[Figure]:
    """Yield the error of every codec on Gaussian data and on a recorded activation."""
    gaussian = torch.randn(activation.shape, generator=torch.Generator().manual_seed(0))
    peak = float(activation.abs().max() / activation.square().mean().sqrt())
    yield Figure(
        name="activation_peak",
        value=peak,
        unit="x",
        better="higher",
        about="largest element of the activation over its root mean square",
    )
    for column, tensor in (("error, Gaussian", gaussian), ("error, activation", activation)):
        for codec in CODED:
            if codec == FORWARD_MASK:
                continue
            sent = encode(codec, tensor, RATIO if codec in SPARSE else 1.0)
            found = decode(sent.description, sent.parts)
            error = float((found - tensor).norm() / tensor.norm())
            name = f"{codec}_{column.split(', ')[1].lower()}_error"
            yield Figure(name=name, value=error, unit="", better="lower", cell=(SHEET, codec, column))
