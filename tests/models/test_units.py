"""Folding of recorded operations into units, values that cross a cut, and leaf modules."""

import pytest
from torch import nn

from fleetune.errors import Refused
from fleetune.models import graph as g
from fleetune.models.operations import NodeRef
from fleetune.models.skeleton import skeleton
from fleetune.models.source import configuration
from fleetune.models.units import (
    crossing_values,
    fold_into_units,
    is_cuttable,
    leaf_modules,
    merge_uncuttable,
    state_by_unit,
    tied_parameters_by_unit,
)
from tests.support.models.instances import LABELS
from tests.support.training.model_families import BY_NAME, model_request

BATCHED, SHARED, MIXED = ("s0", "4"), ("7", "4"), ("2*s0", "4")
MANY = ()  # the shape of a call that returns several tensors


def node(number: int, kind: str, target: str, reads: tuple[int, ...], shape: tuple[str, ...] = BATCHED) -> g.Node:
    """Return a node that reads others."""
    value = g.Value(shape=shape, dtype="float32", gradient=True) if shape else None
    return g.Node(number, kind, target, tuple(NodeRef(r) for r in reads), {}, value)


def graph(*nodes: g.Node) -> g.Graph:
    """Return a graph whose output is its last node."""
    inputs = {n.target: n.id for n in nodes if n.kind == g.INPUT}
    return g.Graph(batch="s0", inputs=inputs, output=nodes[-1].id, nodes=nodes, units=())


DRAWN = graph(
    #                 ids   mask
    node(0, g.INPUT, "ids", ()),
    node(1, g.INPUT, "mask", ()),
    #                  |     |
    node(2, g.MODULE, "embed", (0,)),
    node(3, g.FUNCTION, "torch.neg", (1,)),  # |  glue before `layer`
    node(4, g.ATTRIBUTE, "scale", ()),
    node(5, g.MODULE, "layer", (2, 3, 4), MANY),
    node(6, g.ITEM, "0", (5,)),
    node(7, g.ITEM, "1", (5,)),
    node(8, g.MODULE, "layer", (6, 3), BATCHED),  # runs a second time
    node(9, g.MODULE, "head", (8, 7)),
    node(10, g.FUNCTION, "torch.tanh", (9,)),  # glue after the last module
)


def test_glue_goes_with_the_module_behind_it() -> None:
    """Items stay with their call, a second run has a name of its own, trailing operations stay with the last module."""
    units = {unit.name: unit.nodes for unit in fold_into_units(DRAWN).units}
    assert units == {"embed": (2,), "layer": (3, 5, 6, 7), "layer@2": (8,), "head": (9, 10)}


def test_a_model_without_modules_is_one_unit() -> None:
    """A unit without a module is called `model`."""
    only = graph(node(0, g.INPUT, "x", ()), node(1, g.FUNCTION, "torch.neg", (0,)))
    assert fold_into_units(only).units == (g.GraphUnit(name="model", nodes=(1,)),)


@pytest.mark.parametrize("last, values", [(2, (1, 2)), (7, (3, 6, 7)), (8, (7, 8)), (10, ())])
def test_what_crosses_a_cut_is_made_before_and_read_after(last: int, values: tuple[int, ...]) -> None:
    """Inputs that are read later cross too; weights never do."""
    assert crossing_values(DRAWN, last) == values


@pytest.mark.parametrize("shape, batched", [(BATCHED, True), (SHARED, False), (MIXED, None), (("4", "s0"), None)])
def test_only_the_first_dimension_is_divided(shape: tuple[str, ...], batched: bool | None) -> None:
    """Values with samples first are divided, values without samples are shared, all others cannot be divided."""
    made = graph(node(0, g.INPUT, "x", ()), node(1, g.MODULE, "a", (0,), shape), node(2, g.MODULE, "b", (1,)))
    assert made.batched(1) is batched
    assert is_cuttable(made, 1) is (batched is not None)


def test_units_between_which_no_cut_is_possible_are_joined() -> None:
    """The merged unit has the name of its last unit, and all remaining borders can be cut."""
    made = graph(
        node(0, g.INPUT, "x", ()),
        node(1, g.MODULE, "a", (0,), MIXED),
        node(2, g.MODULE, "b", (1,), MIXED),
        node(3, g.MODULE, "c", (2,)),
        node(4, g.MODULE, "d", (3,)),
    )
    units = merge_uncuttable(fold_into_units(made)).units
    assert [(unit.name, unit.nodes) for unit in units] == [("c", (1, 2, 3)), ("d", (4,))]


def test_a_call_of_several_tensors_has_no_value_of_its_own() -> None:
    """Only its items have values."""
    with pytest.raises(Refused, match="node 5 makes several tensors"):
        DRAWN.value(5)
    assert DRAWN.value(6).shape == BATCHED


def test_weights_that_two_units_read_are_tied() -> None:
    """Reads by module and by attribute count; a frozen weight is not tied; a unit that runs twice counts as two."""
    model = nn.Module()
    model.embed, model.layer, model.head = nn.Linear(4, 4), nn.Linear(4, 4, bias=False), nn.Linear(4, 4)
    model.head.weight = model.embed.weight
    model.scale = nn.Parameter(model.embed.bias.detach())
    model.head.bias.requires_grad_(False)
    folded = fold_into_units(DRAWN)
    assert state_by_unit(folded, model) == {
        "embed": ("embed.weight", "embed.bias"),
        "layer": ("layer.weight", "scale"),
        "layer@2": ("layer.weight",),
        "head": ("embed.weight", "head.bias"),
    }
    assert tied_parameters_by_unit(folded, model) == {
        "embed": ("embed.weight",),
        "layer": ("layer.weight",),
        "layer@2": ("layer.weight",),
        "head": ("embed.weight",),
    }


@pytest.mark.parametrize(
    "name, blocks",
    [
        ("bert", "bert.embeddings bert.encoder.layer.0 bert.encoder.layer.1 bert.pooler dropout classifier"),
        ("roberta", "roberta.embeddings roberta.encoder.layer.0 roberta.encoder.layer.1 classifier"),
        (
            "gpt2",
            "transformer.wte transformer.wpe transformer.drop transformer.h.0 transformer.h.1 transformer.ln_f lm_head",
        ),
        ("llama", "model.embed_tokens model.layers.0 model.layers.1 model.norm model.rotary_emb lm_head"),
        ("vit", "vit.embeddings vit.layers.0 vit.layers.1 vit.layernorm classifier"),
        (
            "resnet",
            "resnet.embedder resnet.encoder.stages.0.layers.0 resnet.encoder.stages.1.layers.0 "
            "resnet.encoder.stages.1.layers.1 resnet.pooler classifier",
        ),
        (
            "efficientnet",
            "efficientnet.embeddings efficientnet.encoder.blocks.0 efficientnet.encoder.blocks.1 "
            "efficientnet.encoder.blocks.2 efficientnet.encoder.blocks.3 efficientnet.encoder.blocks.4 "
            "efficientnet.encoder.blocks.5 efficientnet.encoder.blocks.6 efficientnet.encoder.top_conv "
            "efficientnet.encoder.top_bn efficientnet.encoder.top_activation efficientnet.pooler dropout classifier",
        ),
    ],
)
def test_blocks_are_what_a_family_repeats(name: str, blocks: str) -> None:
    """Leaves are transformer layers, residual blocks or inverted residuals, and the modules around them."""
    family = BY_NAME[name]
    request = model_request(family, dropout=True)
    assert leaf_modules(skeleton(configuration(request, LABELS), request), "block") == set(blocks.split())


def test_layers_are_modules_without_children() -> None:
    """At granularity `layer` an adapter stays with its base."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.Linear(2, 2)))
    model[1][1].lora_A = nn.Linear(2, 1)
    assert leaf_modules(model, "layer") - {"1.1.lora_A"} == {"0", "1.0", "1.1"}
