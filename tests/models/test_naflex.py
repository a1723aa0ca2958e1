"""SigLIP 2 for images of any shape: positions, training, and what plain transformers computes of the same weights."""

from pathlib import Path

import pytest
import torch
import transformers
from transformers.models.siglip2.modeling_siglip2 import Siglip2VisionEmbeddings

from benchmarks.families.small_configs import small_config
from benchmarks.families.trial import BITWISE, try_family
from fleetune.contracts.run_config import ModelRequest
from fleetune.models.init_weights import INIT_WEIGHTS, initial_model, write_init_weights
from fleetune.models.model_inputs import input_spec
from fleetune.models.naflex import resized_positions
from fleetune.models.source import configuration

TASK, MOST = "image-classification", 256
ROUNDING = 20 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("side", [1, 4, 16])
def test_positions_are_those_that_transformers_resizes_image_by_image(side: int) -> None:
    """Every number of rows and columns, larger and smaller than the learned grid; its own size keeps all bits."""
    grid = torch.randn(side, side, 8, generator=torch.Generator().manual_seed(side))
    sizes = [(rows, columns) for rows in range(1, 33) for columns in range(2, 33) if rows * columns <= MOST]
    shapes = torch.tensor(sizes)
    ours = resized_positions(grid, shapes, MOST)
    theirs = Siglip2VisionEmbeddings.resize_positional_embeddings(grid, shapes, MOST)
    assert float((ours - theirs).abs().max()) <= ROUNDING * float(grid.abs().max())
    if side > 1:
        same = sizes.index((side, side))
        assert torch.equal(ours[same], theirs[same])


def test_halved_positions_are_resized_in_float32() -> None:
    """In bfloat16 they are those of transformers up to one rounding, and not one for each addition."""
    grid = torch.randn(4, 4, 8, generator=torch.Generator().manual_seed(2)).bfloat16()
    shapes = torch.tensor([[4, 4], [2, 8], [3, 5], [8, 2]])
    theirs = Siglip2VisionEmbeddings.resize_positional_embeddings(grid, shapes, 16)
    ours = resized_positions(grid, shapes, 16)
    assert ours.dtype == torch.bfloat16
    one_rounding = float(grid.abs().max()) * torch.finfo(torch.bfloat16).eps
    assert float((ours.float() - theirs.float()).abs().max()) <= one_rounding


def test_a_single_column_of_patches_has_a_position_for_each_row() -> None:
    """By hand: two learned rows, 0 and 1, at four patches below each other; a single row lies between both."""
    grid = torch.tensor([[[0.0]], [[1.0]]])[:, [0, 0]]
    assert resized_positions(grid, torch.tensor([[4, 1]]), 4).flatten().tolist() == [0.0, 0.25, 0.75, 1.0]
    assert resized_positions(grid, torch.tensor([[1, 1]]), 2).flatten().tolist() == [0.5, 0.5]


def test_it_trains_as_the_plain_model_does() -> None:
    """Cut between all units, two steps with images of four shapes: every bit of every weight."""
    assert try_family(TASK, small_config("siglip2")).status == BITWISE


def test_its_logits_are_those_of_transformers(tmp_path: Path) -> None:
    """The same weights in transformers' own class, which resizes positions image by image; padding changes nothing."""
    request = ModelRequest(task=TASK, config=small_config("siglip2"))
    config = configuration(request, ("a", "b", "c"))
    write_init_weights(config, request, 3, tmp_path / INIT_WEIGHTS)
    ours = initial_model(config, request, tmp_path / INIT_WEIGHTS)
    theirs = transformers.Siglip2ForImageClassification(config).eval()
    theirs.load_state_dict(ours.state_dict())
    patches = input_spec(request).patches
    assert patches is not None, "the model reads patches"
    side, most = patches
    shapes = torch.tensor([[2, 3], [3, 2], [4, most // 4]])
    mask = (torch.arange(most)[None, :] < shapes.prod(1)[:, None]).long()
    pixels = torch.randn(3, most, 3 * side**2, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted = theirs(pixels, mask, shapes).logits
        assert torch.allclose(ours(pixels, mask, shapes).logits, wanted, rtol=1e-5, atol=1e-6)
        padded = torch.where(mask[:, :, None] == 1, pixels, 7.0)
        assert torch.allclose(ours(padded, mask, shapes).logits, wanted, rtol=1e-5, atol=1e-6)
