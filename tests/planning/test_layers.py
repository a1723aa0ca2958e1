"""Units joined into fewer layers."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetune.clock import Clock
from fleetune.contracts.profile import Unit
from fleetune.errors import Refused
from fleetune.models.skeleton import skeleton
from fleetune.models.source import configuration
from fleetune.models.units import leaf_modules
from fleetune.planning import Problem
from fleetune.planning.layers import cut_places, layer_edges
from fleetune.program.blocks import block_of
from tests.support.clock import fleets
from tests.support.models.instances import recorded
from tests.support.planning.instances import small, tiny
from tests.support.training.model_families import FAMILIES, Family, model_request


def edges(problem: Problem, layers: str | int) -> list[int]:
    """`layer_edges` with the problem's own clock."""
    return layer_edges(problem, layers, Clock(problem.fleet, problem.profile))


def of(units: list[Unit], work: list[float] | None = None) -> Problem:
    """A problem with these units on devices a, b and c."""
    return replace(small(), profile=fleets.profile(units, fleets.PACES, work))


def test_a_block_ends_with_its_number() -> None:
    """Words before the number name the list; embeddings and head are of none; a part's second run (@2) is in it."""
    names = ["emb.word", "emb.norm", "enc.layer.0.a", "enc.layer.0.b", "enc.layer.0.a@2", "enc.layer.1.a", "head"]
    blocks = ["", "", "enc.layer.0", "enc.layer.0", "enc.layer.0", "enc.layer.1", ""]
    assert block_of(names) == blocks


def test_a_list_of_lists_has_the_inner_ones_as_blocks() -> None:
    """A stage of layers is no block, its layers are; the numbered convolutions of a layer beside a shortcut are not."""
    names = ["s.0.l.0.c.0", "s.0.l.0.c.1", "s.0.l.0.shortcut", "s.0.l.1.c.0", "s.0.l.1.act", "s.1.l.0.c.0", "s.1.l.0.x"]
    assert block_of(names) == ["s.0.l.0"] * 3 + ["s.0.l.1"] * 2 + ["s.1.l.0"] * 2


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_names_tell_the_blocks_that_the_model_repeats(family: Family, tmp_path: Path) -> None:
    """Recorded layer by layer, units fall into the blocks that granularity `block` records as one."""
    request = model_request(family, dropout=False)
    made = recorded(family, tmp_path, granularity="layer")
    whole = leaf_modules(skeleton(configuration(request, made.labels), request), "block")
    found = {block for block in block_of(made.units) if block}
    numbered = {leaf for leaf in whole if leaf.rsplit(".", 1)[-1].isdigit()}
    assert found - {"classifier.0", "classifier.1"} == numbered - {"classifier.0", "classifier.1"} != set()


def test_blocks_begin_and_end_where_names_change() -> None:
    """Embeddings of two units, two blocks of two, a head; one block that may not be cut from the next stays with it."""
    names = ["emb.a", "emb.b", "l.0.a", "l.0.b", "l.1.a", "l.1.b", "head"]
    units = [fleets.unit(name) for name in names]
    assert edges(of(units), "blocks") == [0, 2, 4, 6, 7]
    units[3] = replace(units[3], cut_after=False)
    assert edges(of(units), "blocks") == [0, 2, 6, 7]
    assert edges(of(units), "units") == [0, 1, 2, 3, 5, 6, 7]


def test_layers_of_equal_work_are_cut_where_least_crosses() -> None:
    """Ten equal units in two layers: the middle, or a place within a quarter (1.25 units) where less crosses."""
    units = [fleets.unit(f"u{k}") for k in range(10)]
    assert edges(of(units), 2) == [0, 5, 10]
    thin = [replace(unit, gradient_bytes=0) if k == 3 else unit for k, unit in enumerate(units)]
    assert edges(of(thin), 2) == [0, 4, 10]
    far = [replace(unit, gradient_bytes=0) if k == 2 else unit for k, unit in enumerate(units)]
    assert edges(of(far), 2) == [0, 5, 10]


def test_work_is_measured_and_not_counted() -> None:
    """One unit with half of the work is a layer of its own."""
    assert edges(of([fleets.unit(f"u{k}") for k in range(4)], [3.0, 1.0, 1.0, 1.0]), 2) == [0, 1, 4]


@settings(max_examples=80, deadline=None)
@given(problem=tiny(), layers=st.sampled_from(["units", "blocks", 1, 2, 3, 4, 9]))
def test_layers_are_some_of_the_places_where_a_cut_is_allowed(problem: Problem, layers: str | int) -> None:
    """From the first unit to the last, ascending; n layers at most where n were asked for, all places for `units`."""
    found = edges(problem, layers)
    places = cut_places(problem.profile.units)
    assert found == sorted(set(found)) and set(found) <= set(places)
    assert (found[0], found[-1]) == (0, len(problem.profile.units))
    if layers == "units":
        assert found == places
    if isinstance(layers, int):
        assert len(found) - 1 <= layers


@pytest.mark.parametrize("layers", ["layers", 0, -1])
def test_other_layers_are_refused(layers: str | int) -> None:
    """The message says what is allowed."""
    with pytest.raises(Refused, match="layers is .*; allowed are units, blocks and a number of layers of at least 1"):
        edges(small(), layers)
