"""SigLIP 2 for images of any shape (NaFlex), so that it can be recorded.

An image keeps its shape, is cut into at most so many patches, and told with its number of rows and columns. The learned
positions, a square grid, are resized to those, which transformers does image by image with numbers read from the data.
Here the same weights come from arithmetic on all images at once.
"""

import torch
from transformers import PreTrainedModel

from fleetune.models.source import ANY_SHAPE


def use_recordable_positions(model: PreTrainedModel) -> None:
    """Have the model's embeddings of images, if it is such a one, resize their positions by `resized_positions`."""
    if model.config.model_type == ANY_SHAPE:
        model.vision_model.embeddings.resize_positional_embeddings = resized_positions


def resized_positions(grid: torch.Tensor, spatial_shapes: torch.Tensor, max_length: int) -> torch.Tensor:
    """Return positions [samples, max_length, width] of patches, row by row, padded with those of the first patch.

    grid: learned positions [side, side, width]. spatial_shapes: rows and columns of each image [samples, 2]. An image
    of a single column of patches has positions of all rows here, and those of the first row alone in transformers, for
    which torch 2.13 resizes to one column wrongly.
    """
    side, width = grid.shape[0], grid.shape[2]
    patch = torch.arange(max_length, device=grid.device)
    rows, columns = spatial_shapes[:, :1], spatial_shapes[:, 1:]
    patch = torch.where(patch[None, :] < rows * columns, patch[None, :], 0)
    across = _triangle(torch.remainder(patch, columns), columns, side)
    down = _triangle(torch.div(patch, columns, rounding_mode="floor"), rows, side)
    exact = torch.promote_types(grid.dtype, torch.float32)  # as transformers does, for halved weights
    weights = (down[:, :, :, None] * across[:, :, None, :]).flatten(2).to(exact)
    return (weights @ grid.reshape(side * side, width).to(exact)).to(grid.dtype)


def _triangle(index: torch.Tensor, new: torch.Tensor, old: int) -> torch.Tensor:
    """Return the weights [samples, patches, old] of bilinear resizing with antialiasing, as torch's interpolate has it.

    index: [samples, patches], a place among `new` ones [samples, 1].
    """
    scale = old / new.to(torch.float32)
    centre = (index.to(torch.float32) + 0.5) * scale
    place = torch.arange(old, device=index.device, dtype=torch.float32) + 0.5
    distance = (place[None, None, :] - centre[:, :, None]).abs() / scale.clamp(min=1.0)[:, :, None]
    weights = (1.0 - distance).clamp(min=0.0)
    return weights / weights.sum(dim=2, keepdim=True)
