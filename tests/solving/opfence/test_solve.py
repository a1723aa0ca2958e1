"""Plans of every method satisfy the contract, computed again in exact fractions; golden plans."""

import pytest

from fleetune.errors import Infeasible
from tests.support.golden import same_as_golden
from tests.support.solving.opfence.instances import (
    Plain,
    all_methods,
    branches,
    chain,
    clustered,
    drawn,
    resnet,
    solved,
    tiny,
    transformer,
)
from tests.support.solving.opfence.reference import best, check

GRAPHS = {
    "chain": chain(40),
    "transformer": transformer(6),
    "resnet": resnet((2, 3, 2)),
    "branches": branches(4, 6),
}


@pytest.mark.parametrize("memory", [None, 1.6])
@pytest.mark.parametrize("seed", range(30))
def test_tiny(seed: int, memory: float | None) -> None:
    """The search finds the best of all placements, no bound is above it, and it fails only if no placement fits."""
    plain = tiny(seed, operators=1 + seed % 5, devices=1 + seed // 2 % 3, memory=memory)
    least, plans = best(plain), all_methods(plain)
    assert ("search" in plans) == ("opfence" in plans) == (least is not None)
    if least is not None:
        assert plans["search"]["objective"] == pytest.approx(float(least), rel=1e-9)
        for plan in plans.values():
            assert not plan["feasible"] or plan["objective"] >= float(least) * (1 - 1e-9)
            assert plan["lower_bound"] <= float(least) * (1 + 1e-12)


@pytest.mark.parametrize("ratio", [None, 20.0, 1000.0])
@pytest.mark.parametrize("graph", GRAPHS)
def test_clustered(graph: str, ratio: float | None) -> None:
    """On graphs of every shape all plans keep the contract, and the search is never slower than any that fits."""
    for seed, sizes in enumerate([(3, 2), (4, 1, 4)]):
        plans = all_methods(clustered(seed, GRAPHS[graph], sizes, ratio))
        for plan in plans.values():
            if plan["feasible"]:
                assert plans["search"]["objective"] <= plan["objective"]
            assert plan["lower_bound"] <= plans["search"]["objective"]


@pytest.mark.parametrize("method", ["search", "opfence", "equal-modules", "equal-compute"])
def test_same_again(method: str) -> None:
    """The same problem, seed and method give the same plan, also for keys in another order."""
    plain = clustered(5, transformer(4), (3, 3), 50.0)
    one, other = solved(plain, method, seed=7), solved(plain, method, seed=7)
    assert one.pop("solve_s") >= 0
    assert other.pop("solve_s") >= 0
    assert one == other
    assert one["deterministic"] is True


def test_time_limit() -> None:
    """A search with a time limit is not called deterministic, and satisfies the contract."""
    plain = clustered(6, chain(20), (2, 2))
    plan = solved(plain, "search", time_limit_s=0.3)
    check(plain, plan)
    assert plan["deterministic"] is False


def test_one_device() -> None:
    """One device: the time is all flops over its speed per micro-batch, without traffic, and equals the bound."""
    plain = drawn(devices=[{"name": "a", "flops_per_s": 50.0, "memory_bytes": 10**6}], alpha_s=[[0]])
    plain["beta_s_per_byte"] = [[None]]
    for plan in all_methods(plain).values():
        assert plan["objective"] == 4 * 600 / 50
        assert plan["links"] == []
        assert plan["lower_bound"] == pytest.approx(plan["objective"])


def test_no_work_and_no_links() -> None:
    """No flops and links that take no time: every method needs 0 s."""
    plain = drawn(alpha_s=[[0] * 3] * 3, beta_s_per_byte=[[0] * 3] * 3, compression_ratio=10)
    plain["operators"] = [node | {"flops": 0} for node in plain["operators"]]
    for plan in all_methods(plain).values():
        assert plan["objective"] == 0
        assert plan["lower_bound"] == 0
        assert all(link["ratio"] >= 1 for link in plan["links"])


def test_no_graph() -> None:
    """Operators without inputs need no links, and any device may run any of them."""
    plain = drawn()
    plain["operators"] = [node | {"inputs": []} for node in plain["operators"]]
    plans = all_methods(plain)
    assert plans["search"]["links"] == []
    assert plans["search"]["objective"] == pytest.approx(float(best(plain) or 0))


def test_more_devices_than_operators() -> None:
    """Two operators on nine devices: every method has a plan, and the baselines leave devices without any."""
    plain = clustered(8, chain(2), (4, 5))
    plans = all_methods(plain)
    assert set(plans) == {"search", "opfence", "equal-modules", "equal-compute"}
    assert len(set(plans["equal-modules"]["placement"].values())) == 2


def test_listed_in_any_order() -> None:
    """Operators may be listed users first: the plan keeps that order and the cost."""
    plain = drawn()
    turned = plain | {"operators": plain["operators"][::-1]}
    for method in ("search", "opfence"):
        one, other = solved(plain, method), solved(turned, method)
        check(turned, other)
        assert other["objective"] == pytest.approx(one["objective"], rel=1e-12)


@pytest.mark.parametrize("devices", [24, 48])
@pytest.mark.parametrize("graph", ["gpt2-xl", "resnet-101"])
def test_large(graph: str, devices: int) -> None:
    """Hundreds of operators on 24 and 48 devices, compressed 100 times: plans satisfy the contract, and ours beat
    the baselines."""
    nodes = transformer(48) if graph == "gpt2-xl" else resnet((3, 4, 23, 3))
    sizes = (8, 4, 4, 4, 4) if devices == 24 else (8, 8, 8, 8, 8, 8)
    plans = all_methods(clustered(9, nodes, sizes, 100.0))
    assert plans["search"]["objective"] <= plans["opfence"]["objective"]
    for baseline in ("equal-modules", "equal-compute"):
        assert plans["opfence"]["objective"] <= plans[baseline]["objective"]


def test_memory_that_runs_do_not_fit() -> None:
    """Three operators of 8, 8 and 4 in a row and two devices of 12 and 8: only 8 + 4 and 8 fit, which the order of a
    chain does not offer; both methods that respect memory find it."""
    nodes = chain(3)
    sizes = [8, 4, 8]
    plain = drawn(micro_batches=1, optimizer_bytes_per_param_byte=0.0)
    plain["operators"] = [
        node | {"param_bytes": 500 * size, "output_bytes": 0} for node, size in zip(nodes, sizes, strict=True)
    ]
    plain["devices"] = [
        {"name": "a", "flops_per_s": 1.0, "memory_bytes": 8000},
        {"name": "b", "flops_per_s": 1.0, "memory_bytes": 12000},
    ]
    plain["alpha_s"] = plain["beta_s_per_byte"] = [[0, 1], [1, 0]]
    for method in ("search", "opfence"):
        check(plain, solved(plain, method))
    plain["operators"] = [node | {"param_bytes": 500 * 7} for node in plain["operators"]]
    for method in ("search", "opfence"):
        with pytest.raises(Infeasible, match="all operators .* need 21000 bytes, all devices together have 20000 and "):
            solved(plain, method)


PROBLEMS = {
    "drawn": drawn(),
    "thinned": drawn(compression_ratio=10, beta_s_per_byte=[[None, 0.02, 0.1], [0.02, None, 0.1], [0.1, 0.1, None]]),
    "transformer": clustered(1, transformer(3), (2, 2), 20.0),
    "branches": clustered(2, branches(3, 3), (2, 1)),
}


def text(plan: Plain) -> str:
    """Draw the cost, then operators by device, then links."""
    verdict = "" if plan["feasible"] else f" if it fitted: {plan['reason']}"
    lines = [f"{plan['method']}: {plan['objective']:.6f} s, no plan less than {plan['lower_bound']:.6f} s{verdict}"]
    lines.append("  clusters " + " | ".join(" ".join(cluster) for cluster in plan["clusters"]))
    for device in dict.fromkeys(plan["placement"].values()):
        lines.append(f"  {device}: " + " ".join(name for name, on in plan["placement"].items() if on == device))
    lines += [f"  {x['from']} -> {x['to']}: {x['bytes']} bytes, ratio {x['ratio']:.4g}" for x in plan["links"]]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", PROBLEMS)
def test_plan(name: str) -> None:
    """The plans of all methods equal the golden files."""
    methods = ("search", "opfence", "equal-modules", "equal-compute")
    same_as_golden(f"solve-opfence-{name}.txt", "".join(text(solved(PROBLEMS[name], method)) for method in methods))
