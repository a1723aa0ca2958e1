"""Problems beyond the memory or time of a method."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from fleetune.arrays import Ints
from fleetune.errors import Infeasible, Refused
from fleetune.solving import limits
from fleetune.solving.hpp import HPP, bound
from fleetune.solving.hpp import solve as solve_module
from fleetune.solving.hpp.bound import lower_bound_s
from fleetune.solving.hpp.draft import Draft
from fleetune.solving.hpp.instance import Instance
from fleetune.solving.hpp.methods import asteroid
from fleetune.solving.hpp.methods import search as search_module
from fleetune.solving.hpp.methods.search import Search, SearchOptions
from fleetune.solving.hpp.solve import solve
from tests.support.solving.hpp.instances import tiny


def test_what_does_not_fit_is_refused_before_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """100,000 layers ended in a MemoryError: the published planner's tables grow with the square of the layers."""
    problem = tiny(1, layers=40, devices=3)
    needed = asteroid.needed_bytes(40, 3)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=needed))
    assert solve(problem, method="asteroid").feasible
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=needed - 1))
    with pytest.raises(Refused, match=r"40 layers on 3 devices need .* GB of memory by this method, and .* are free"):
        solve(problem, method="asteroid")
    assert solve(problem).feasible, "search does without"


def test_tables_are_as_large_as_checked() -> None:
    """The bytes that are checked are those of the allocated tables."""
    instance = Instance(tiny(1, layers=40, devices=3))
    table = asteroid.PipelineDP(instance, np.arange(3), np.arange(41)).table
    large = (table.span_s, table.tail_s, table.cut, table.head, table.links, table.speed)
    assert sum(part.nbytes for part in large) == asteroid.needed_bytes(40, 3)


def test_the_room_of_a_container_counts(tmp_path: Path) -> None:
    """Free memory is what a container's limit leaves, or without a limit what the machine has."""
    membership = tmp_path / "membership"
    membership.write_text("0::/\n")
    assert limits.available_bytes(membership, tmp_path) > 0
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("2000\n")
    assert limits.available_bytes(membership, tmp_path) == 3000


def test_a_planner_that_is_stopped_stops() -> None:
    """A flag set by another thread ends the compiled loop, which raises instead of answering."""
    instance = Instance(tiny(1, layers=40, devices=3))
    with pytest.raises(Infeasible, match="time was up"):
        asteroid.plan(instance, np.ones(1, np.int64))


def test_a_time_limit_ends_the_published_planner_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time limit also ends the published planner, which once made a search of 5 s take 175 s at 20,000 layers."""
    heard = []

    def endless(instance: Instance, stopped: Ints) -> Draft:
        while not stopped[0]:
            pass
        heard.append(True)
        raise Infeasible("stopped")

    # replaced: a planner that ends only once it is told to
    monkeypatch.setattr(search_module.asteroid, "plan", endless)
    until_heard = SearchOptions(time_limit_s=0.05, now=lambda: float(bool(heard)))
    assert Search(Instance(tiny(1, layers=40, devices=3)), until_heard).best().score > 0
    assert heard == [True]


@pytest.mark.parametrize(("takes_s", "memory", "tried"), [(5.0, 1.0, 0), (0.5, 1.0, 1), (5.0, 0.01, 1)])
def test_baselines_that_would_outlast_a_time_limit_are_left_out(
    takes_s: float, memory: float, tried: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a limit of 1 s, 3000 layers on 40 devices took 10 s, since baselines cannot be stopped. They are left out
    where they would not end in time, unless no plan that fits is known yet."""
    asked = []

    def baseline(instance: Instance) -> Draft:
        asked.append(instance)
        raise Infeasible("noted")

    monkeypatch.setattr(search_module, "BASELINES", (baseline,))
    monkeypatch.setattr(search_module, "SLOW", {baseline: lambda _: takes_s})
    instance = Instance(tiny(1, layers=40, devices=3, memory=memory))
    search = Search(instance, SearchOptions(time_limit_s=1.0, now=lambda: 0.0))
    for draft in search.starts():
        search.add(draft)
    assert len(asked) == tried


def test_a_time_limit_begins_before_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a limit of 1 s, a search has a quarter if the bound takes three."""
    seconds, given = [0.0], []

    def bound_s(instance: Instance) -> float:
        seconds[0] += 0.75
        return 0.0

    def searched(instance: Instance, options: SearchOptions, bound_s: float) -> Draft:
        given.append(options.time_limit_s)
        return next(search_module.even_drafts(instance))

    # replaced: a clock that only the bound moves
    monkeypatch.setattr(solve_module, "Deadline", partial(limits.Deadline, now=lambda: seconds[0]))
    monkeypatch.setattr(solve_module, "lower_bound_s", bound_s)  # replaced: a bound that takes most of the limit
    monkeypatch.setattr(solve_module, "_solve_by_search", searched)  # private: no plan tells the limit of its search
    assert not solve(tiny(1), time_limit_s=1.0).deterministic
    assert solve(tiny(1)).deterministic
    assert given == [0.25, None]


def test_the_bound_of_many_devices_is_cheaper(monkeypatch: pytest.MonkeyPatch) -> None:
    """The linear program has at most so many cells, and its bound hardly loses: 600 layers on 40 devices."""
    instance = Instance(tiny(1, layers=600, devices=40, samples=2))
    rates = np.diff(instance.best_s, axis=1)
    assert bound.joined_runs(rates).shape == (40, bound.MAX_LP_CELLS // 40)
    cheap_s = bound.work_s(instance)
    monkeypatch.setattr(bound, "MAX_LP_CELLS", 600 * 40)
    assert 0.999 * bound.work_s(instance) < cheap_s <= bound.work_s(instance) * (1 + 1e-9)


def test_long_chains_are_searched_without_the_published_planner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a time limit, a search of a long chain skips the published planner, whose work grows without bound."""

    def unasked(*_: object) -> Draft:
        raise AssertionError("asked")

    monkeypatch.setattr(search_module, "MAX_ASTEROID_STATES", (40 * 3) ** 2 - 1)
    # replaced: what it would find is found without it too
    monkeypatch.setattr(search_module.asteroid, "plan", unasked)
    instance = Instance(tiny(1, layers=40, devices=3))
    assert Search(instance, SearchOptions()).best().score > 0


def test_runs_of_layers_give_a_bound_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dual prices of runs of layers give a valid bound; for a million layers the full program took 15 minutes."""
    instance = Instance(tiny(1, layers=40, devices=3))
    exact = lower_bound_s(instance)
    monkeypatch.setattr(bound, "MAX_LP_RUNS", 4)
    assert 0.5 * exact < lower_bound_s(instance) <= exact * (1 + 1e-9)


def test_a_million_layers_are_refused_before_they_are_proven() -> None:
    """Validating a million layers took 22 minutes; they are refused by their number."""
    with pytest.raises(Refused, match="problem: layers: 1000000 are more than 200000; join neighbours"):
        HPP.parse({"kind": "hpp", "layers": [None] * 10**6}, "problem")
