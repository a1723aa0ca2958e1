"""Weights in 4 bits: the nearest of 16 levels in each block of 64, laid out as bitsandbytes has them."""

import math

import pytest
import torch
from torch import nn

from fleetune.models.nf4 import BLOCK, PACKED, Nf4Linear, pack, pack_frozen_layers, packed_bytes, rounded, unpack
from tests.support.models.plain_nf4 import nearest


@pytest.mark.parametrize("shape", [(2, 64), (3, 50), (1, 1), (64, 64), (5, 129)])
def test_each_element_is_the_nearest_level_of_its_block(shape: tuple[int, int]) -> None:
    """Blocks run over the ends of rows, and the last one may be a part."""
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    assert torch.equal(rounded(weight), nearest(weight))


def test_a_block_of_zeros_stays_zero() -> None:
    """Its largest magnitude is no divisor."""
    weight = torch.zeros(2, BLOCK)
    weight[1, 5] = -2.0
    assert torch.equal(rounded(weight), weight)


def test_what_is_packed_takes_four_and_a_half_bits() -> None:
    """Half a byte an element, and a float32 a block."""
    weight = torch.randn(256, 128)
    packed = pack(weight)
    assert packed.dtype == PACKED and packed.numel() == packed_bytes(weight.numel()) == weight.numel() * 4.5 / 8


def test_bytes_are_those_of_bitsandbytes() -> None:
    """The first element of a pair is in the upper half of a byte: -1 is code 0, 0 is code 7, 1 is code 15."""
    weight = torch.zeros(1, BLOCK)
    weight[0, :4] = torch.tensor([-4.0, 4.0, 0.0, 1.8])
    packed = pack(weight).view(torch.uint8)
    assert packed[:3].tolist() == [0x0F, 0x7C, 0x77]
    assert float(packed[BLOCK // 2 :].view(torch.float32)) == 4.0


def test_many_portions_are_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large weight is packed part by part."""
    weight = torch.randn(7, 100)
    whole = pack(weight)
    monkeypatch.setattr("fleetune.models.nf4.PORTION_BLOCKS", 3)
    assert torch.equal(pack(weight), whole)
    assert torch.equal(unpack(whole, weight.shape, torch.float32), nearest(weight))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [(6,), (2, 3)])
def test_a_layer_computes_with_what_was_rounded(dtype: torch.dtype, bias: bool, rows: tuple[int, ...]) -> None:
    """Products and gradients are those of a plain layer with the rounded weight, bit for bit."""
    plain = nn.Linear(40, 24, bias=bias)
    layer = packed_layer(plain)
    with torch.no_grad():
        plain.weight.copy_(nearest(plain.weight))
    results = []
    for each in (plain.to(dtype), layer.to(dtype)):
        given = torch.randn(*rows, 40, generator=torch.Generator().manual_seed(1)).to(dtype).requires_grad_()
        made = each(given)
        made.sin().sum().backward()
        results.append((made, given.grad, each.bias.grad if bias else made))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def packed_layer(plain: nn.Linear) -> nn.Linear:
    """A layer with the packed weight of another one, and its bias."""
    layer = Nf4Linear(plain.in_features, plain.out_features, bias=plain.bias is not None)
    layer.weight = nn.Parameter(pack(plain.weight), requires_grad=False)
    if plain.bias is not None:
        layer.bias = nn.Parameter(plain.bias.detach().clone())
    return layer


def test_only_frozen_linear_layers_are_packed() -> None:
    """Trained layers, weights that two layers share, what is to be kept, and other layers stay as they are."""
    with torch.device("meta"):
        model = nn.ModuleDict(
            {name: nn.Linear(8, 8) for name in ("frozen", "trained", "first", "second", "head")}
            | {"embedding": nn.Embedding(8, 8)}
        )
    model["second"].weight = model["first"].weight
    model.requires_grad_(False)
    model["trained"].requires_grad_(True)
    assert pack_frozen_layers(model, keep=[model["head"]]) == ["frozen.weight"]
    assert type(model["frozen"]) is Nf4Linear
    assert model["frozen"].weight.numel() == packed_bytes(64) == math.ceil(64 * 4.5 / 8)
    assert all(type(model[name]) is not Nf4Linear for name in ("trained", "first", "second", "head"))
