"""NF4 by its definition, in plain PyTorch; nothing of the library is used."""

import torch

BLOCK = 64
QUANTILES = torch.tensor(
    [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
     -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
     0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0]
)  # fmt: skip


def nearest(weight: torch.Tensor) -> torch.Tensor:
    """Return a weight whose elements are each the nearest level, times the largest magnitude, of their block."""
    found = []
    for part in weight.detach().reshape(-1).split(BLOCK):
        largest = part.abs().max()
        shares = part / largest if largest > 0 else part
        found.append(QUANTILES[(shares[:, None] - QUANTILES).abs().argmin(1)] * largest)
    return torch.cat(found).view(weight.shape)
