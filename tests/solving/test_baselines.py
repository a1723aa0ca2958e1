"""Baselines: every plan is one, and each method finds the best by its own measure."""

import dataclasses
from collections.abc import Iterator
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetune.errors import Infeasible
from fleetune.solving.hpp.case import Case
from fleetune.solving.hpp.chain import balanced, runs
from fleetune.solving.hpp.draft import Draft, Stage, judge
from fleetune.solving.hpp.methods import dapple, dp, eddl, hetpipe, pipedream, pp, single
from fleetune.solving.hpp.problem import Problem
from tests.solving.instances import drawn, tiny

HYBRID = [pp, pipedream, dapple]
WHOLE = [single, dp, eddl]
METHODS = [*WHOLE, *HYBRID]
SEEDS = range(6)


def proven(case: Case, draft: Draft, micro_batch: int) -> set[int]:
    """Assert that a draft is a plan; its devices."""
    assert [stage.first for stage in draft.stages] == [0, *(stage.end for stage in draft.stages[:-1])]
    assert draft.stages[-1].end == case.layers
    assert all(stage.first < stage.end for stage in draft.stages)
    for stage in draft.stages:
        assert len(stage.devices) == len(stage.samples)
        assert min(stage.samples) >= 1
        assert sum(stage.samples) == micro_batch
    devices = [device for stage in draft.stages for device in stage.devices]
    assert len(set(devices)) == len(devices)
    assert set(devices) <= set(range(case.devices))
    assert list(draft.warmups) == case.warmups(len(draft.stages))
    return set(devices)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Odd shapes: few or many layers, devices, samples; layers that cost nothing; devices that are all the same."""
    shape = {name: draw(st.integers(1, 6)) for name in ("layers", "devices", "samples")}
    listed = draw(st.integers(1, min(shape["layers"], shape["devices"])))
    problem = tiny(
        draw(st.integers(0, 99)),
        **shape,
        link=draw(st.sampled_from([0.01, 1.0, 100.0])),
        micro_batches=draw(st.integers(1, 5)),
        warmup=draw(st.sampled_from(["2(P-p)-1", "P-p", "free", tuple(range(2 * listed, listed, -1))])),
    )
    free = draw(st.sets(st.integers(0, shape["layers"] - 1)))
    alike = draw(st.booleans())
    return dataclasses.replace(
        problem,
        forward_s=_changed(problem.forward_s, free, alike),
        backward_s=_changed(problem.backward_s, free, alike),
    )


def _changed(seconds: tuple[Any, ...], free: set[int], alike: bool) -> tuple[Any, ...]:
    rows = [seconds[0]] * len(seconds) if alike else seconds
    return tuple(
        tuple(tuple(0.0 for _ in times) if layer in free else times for layer, times in enumerate(row)) for row in rows
    )


@given(problem=problems())
@settings(max_examples=60, deadline=None)
def test_every_draft_is_a_plan(problem: Problem) -> None:
    """Whatever the shape, a method gives a plan, the same again, and with as many stages as warm-ups are listed."""
    case = Case(problem)
    stages = None if isinstance(problem.warmup, str) else len(problem.warmup)
    for method in METHODS if stages in (None, 1) else HYBRID:
        draft = method.plan(case)
        proven(case, draft, problem.micro_batch)
        assert draft == method.plan(case)
        assert stages in (None, len(draft.stages))
        assert judge(case, draft).round_s < float("inf")


@given(problem=problems())
@settings(max_examples=40, deadline=None)
def test_every_hetpipe_is_a_plan(problem: Problem) -> None:
    """Virtual workers are pipelines of different devices that share out all micro-batches."""
    case = Case(problem)
    found = hetpipe.plan(case)
    used = [proven(case, worker.draft, problem.micro_batch) for worker in found.virtual_workers]
    assert sum(len(devices) for devices in used) == len(set.union(*used))
    assert sum(worker.micro_batches for worker in found.virtual_workers) == problem.micro_batches
    assert min(worker.micro_batches for worker in found.virtual_workers) >= 1
    assert found.round_s == max(found.server_s, *(worker.busy_s for worker in found.virtual_workers))
    assert (found.server is None) == (len(found.virtual_workers) == 1)


@pytest.mark.parametrize("method", WHOLE, ids=lambda method: method.__name__.split(".")[-1])
def test_one_stage_or_nothing(method: Any) -> None:
    """A list of warm-ups for two stages is infeasible for a method that makes one, and the list is named."""
    with pytest.raises(Infeasible, match=r"warmup: \[3, 1\] fixes 2 stages"):
        method.plan(Case(drawn(warmup=(3, 1))))


@pytest.mark.parametrize("method", [pp, pipedream, dapple, hetpipe], ids=lambda method: method.__name__.split(".")[-1])
def test_long_chain(method: Any) -> None:
    """More layers than a method looks at one by one, on more devices than stages listed, still make a plan."""
    case = Case(tiny(1, layers=1100, devices=4, samples=2, micro_batches=3, warmup=(5, 3, 1)))
    found = method.plan(case)
    for draft in [found] if isinstance(found, Draft) else [worker.draft for worker in found.virtual_workers]:
        proven(case, draft, 2)
        assert len(draft.stages) == 3


# one stage ----------------------------------------------------------------------------------------------------------


def test_single_takes_the_fastest_with_room() -> None:
    """The tx2 is fastest; a nano where the tx2 lacks memory (weights and state 12000 B, activations 1200 B); the tx2
    again where nobody has it."""

    def chosen(nano: int, tx2: int) -> tuple[int, ...]:
        devices = [dataclasses.replace(d, memory_bytes=tx2 if d.name == "tx2" else nano) for d in drawn().devices]
        return single.plan(Case(drawn(devices=tuple(devices)))).stages[0].devices

    assert chosen(13_200, 13_200) == (2,)
    assert chosen(13_200, 13_199) == (0,)
    assert chosen(13_199, 13_199) == (2,)


def test_data_parallel_shares_by_hand() -> None:
    """Of 8 samples the tx2 takes half and each nano a quarter: all are done at the same time."""
    case = Case(drawn(micro_batch=8))
    assert dp.plan(case).stages == (Stage(0, 3, (0, 1, 2), (2, 2, 4)),)
    assert eddl.plan(case).stages == (Stage(0, 3, (0, 1, 2), (2, 2, 4)),)


def test_slowest_stay_out_where_samples_are_few() -> None:
    """Two samples occupy two devices: the tx2 and the first nano."""
    for method in (dp, eddl):
        assert method.plan(Case(drawn())).stages == (Stage(0, 3, (0, 2), (1, 1)),)


@pytest.mark.parametrize("seed", SEEDS)
def test_dp_deals_best(seed: int) -> None:
    """No other way of dealing 7 samples to 3 devices has a faster slowest share."""
    case = Case(tiny(seed, samples=7))
    seconds = case.forward_s[:, :, -1] + case.backward_s[:, :, -1]

    def slowest(shares: tuple[int, ...]) -> Any:
        return max(seconds[device, y] for device, y in enumerate(shares))

    ways = [shares for shares in product(range(1, 8), repeat=3) if sum(shares) == 7]
    assert slowest(dp.plan(case).stages[0].samples) == min(map(slowest, ways))


def test_dealing_where_a_first_sample_decides() -> None:
    """A device that is slow with one sample has one; the rest is dealt below that."""
    assert dp.deal(np.array([[0.0, 9, 18, 27], [0.0, 1, 2, 3]])) == [1, 2]
    assert dp.deal(np.zeros((2, 4))) in ([1, 2], [2, 1])


def test_proportional_rounding() -> None:
    """Capacities 1 : 1 : 2 share 6 as 1.5, 1.5, 3: the first gets the odd one; who would have none takes one."""
    assert eddl.proportional(np.array([4.0, 4.0, 2.0]), 6) == [2, 1, 3]
    assert eddl.proportional(np.array([100.0, 1.0]), 4) == [1, 3]
    assert eddl.proportional(np.array([0.0, 1.0]), 4) == [3, 1]
    assert eddl.proportional(np.array([0.0, 0.0]), 4) == [2, 2]


# cuts ---------------------------------------------------------------------------------------------------------------


def cuttings(layers: int, stages: int) -> list[tuple[int, ...]]:
    """All places to cut, both ends among them."""
    return [(0, *inner, layers) for inner in combinations(range(1, layers), stages - 1)]


@pytest.mark.parametrize("seed", SEEDS)
def test_pp_cuts_best(seed: int) -> None:
    """Of all cuts the slowest stage is fastest, and of those the sum least; stages lie in descending memory."""
    case = Case(tiny(seed, layers=7, devices=4))
    draft = pp.plan(case)
    order = [stage.devices[0] for stage in draft.stages]
    assert order == sorted(range(4), key=lambda device: -case.memory_bytes[device])

    def costs(cuts: tuple[int, ...]) -> tuple[float, float]:
        stages = [sum(case.seconds(d, case.samples, *cuts[p : p + 2])) for p, d in enumerate(order)]
        return max(stages), sum(stages)

    found = (0, *(stage.end for stage in draft.stages))
    assert costs(found) == pytest.approx(min(map(costs, cuttings(7, 4))), rel=1e-12)


def test_pp_by_hand() -> None:
    """The tx2 has the most memory and twice the speed: it takes one layer of three only because each device has one;
    with two stages listed it takes two layers and the slower second nano stays out."""
    assert [stage.devices for stage in pp.plan(Case(drawn())).stages] == [(2,), (0,), (1,)]
    two = pp.plan(Case(drawn(warmup=(3, 1))))
    assert two.stages == (Stage(0, 2, (2,), (2,)), Stage(2, 3, (0,), (2,)))


def test_balanced_breaks_ties_by_the_sum() -> None:
    """The first part costs 5 whatever the rest does: the second ends at 3 for 1 rather than at 2 for 4."""
    costs = np.full((3, 5, 5), 9.0)
    costs[0, 0, 1], costs[1, 1, 2], costs[1, 1, 3], costs[2, 2, 4], costs[2, 3, 4] = 5, 4, 1, 4, 4
    assert balanced(3, lambda p: costs[p]) == [0, 1, 3, 4]


def test_runs_begin_where_least_crosses() -> None:
    """Twelve equal layers in four runs: the cut within half a run of each quarter that carries least."""
    crossing = [9, 9, 9, 1, 9, 9, 2, 9, 9, 1, 9, 9]
    layers = tuple(
        dataclasses.replace(drawn().layers[0], name=f"layer-{i}", output_bytes=size) for i, size in enumerate(crossing)
    )
    one = (((1.0, 2.0),) * 12,) * 3
    case = Case(drawn(layers=layers, forward_s=one, backward_s=one))
    assert runs(case, 4).tolist() == [0, 4, 7, 10, 12]
    assert runs(case, 12).tolist() == list(range(13))


@given(problem=problems(), most=st.integers(1, 8))
@settings(max_examples=40, deadline=None)
def test_runs_cover(problem: Problem, most: int) -> None:
    """There are as many runs as asked for, or as layers, and none is empty."""
    edges = runs(Case(problem), most)
    assert len(edges) - 1 == min(most, len(problem.layers))
    assert edges[0] == 0
    assert edges[-1] == len(problem.layers)
    assert min(np.diff(edges)) >= 1


# planners for homogeneous clusters ----------------------------------------------------------------------------------


def layouts(layers: int, devices: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """All cuts with all numbers of devices a stage that use every device."""
    for stages in range(1, min(layers, devices) + 1):
        for sizes in product(range(1, devices + 1), repeat=stages):
            if sum(sizes) == devices:
                yield from ((cuts, sizes) for cuts in cuttings(layers, stages))


class Average:
    """The average device and link of a case, written out."""

    def __init__(self, case: Case) -> None:
        self.case, devices = case, range(case.devices)
        links = [case.bandwidth[a, b] for a in devices for b in devices if a != b]
        self.bandwidth = float(sum(links)) / len(links)

    def times(self, first: int, end: int) -> tuple[float, float]:
        """Forward and backward of a micro-batch."""
        rows = [self.case.seconds(d, self.case.samples, first, end) for d in range(self.case.devices)]
        return sum(row[0] for row in rows) / len(rows), sum(row[1] for row in rows) / len(rows)

    def weights_s(self, first: int, end: int) -> float:
        """All trained weights across a link once."""
        return float(self.case.trainable_bytes[end] - self.case.trainable_bytes[first]) / self.bandwidth

    def cut_s(self, edge: int) -> tuple[float, float]:
        """Activations and gradients of a micro-batch across a link."""
        per_byte = self.case.samples / self.bandwidth
        return float(self.case.output_bytes[edge]) * per_byte, float(self.case.gradient_bytes[edge]) * per_byte


def read(draft: Draft) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Cuts, and devices of every stage."""
    return (0, *(stage.end for stage in draft.stages)), tuple(len(stage.devices) for stage in draft.stages)


def slowest_stage_s(average: Average, cuts: tuple[int, ...], sizes: tuple[int, ...]) -> float:
    """PipeDream's measure of a plan, weights exchanged once a round."""
    stages = [
        max(sum(average.times(*cuts[p : p + 2])), 2 * (m - 1) * average.weights_s(*cuts[p : p + 2]) / rounds) / m
        for rounds in [average.case.micro_batches]
        for p, m in enumerate(sizes)
    ]
    return max(stages + [sum(average.cut_s(cut)) for cut in cuts[1:-1]])


def pipeline_s(average: Average, cuts: tuple[int, ...], sizes: tuple[int, ...]) -> float:
    """DAPPLE's L = T_w + T_s + T_e, as its docstring tells it."""
    steps: list[tuple[float, float, float]] = []
    for p, m in enumerate(sizes):
        if p > 0:
            steps.append((*average.cut_s(cuts[p]), 0.0))
        forward_s, backward_s = average.times(*cuts[p : p + 2])
        steps.append((forward_s / m, backward_s / m, 2 * (m - 1) / m * average.weights_s(*cuts[p : p + 2])))
    more, pivot = average.case.micro_batches - 1, len(steps) - 1
    for s in reversed(range(len(steps) - 1)):
        between = sum(f + b for f, b, _ in steps[s + 1 : pivot])
        if more * sum(steps[s][:2]) > more * sum(steps[pivot][:2]) + between:
            pivot = s
    ends = [
        reduce_s + (sum(b for _, b, _ in steps[s : pivot + 1]) if s <= pivot else -sum(b for _, b, _ in late))
        for s, (_, _, reduce_s) in enumerate(steps)
        for late in [steps[pivot + 1 : s]]
    ]
    return sum(f for f, _, _ in steps[: pivot + 1]) + more * sum(steps[pivot][:2]) + max(ends)


@pytest.mark.parametrize(("method", "measure"), [(pipedream, slowest_stage_s), (dapple, pipeline_s)], ids=["P", "D"])
@pytest.mark.parametrize("link", [0.02, 0.3, 5.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_no_layout_is_better(seed: int, link: float, method: Any, measure: Any) -> None:
    """Of all cuts and replications of 4 layers on 3 devices, the plan is best by the planner's own measure; in every
    other instance the later layers have the weights."""
    problem = tiny(seed, layers=4, devices=3, samples=4, link=link)
    heavy = tuple(
        dataclasses.replace(x, param_bytes=4**k * 9000, trainable_bytes=None) for k, x in enumerate(problem.layers)
    )
    case = Case(dataclasses.replace(problem, layers=heavy) if seed % 2 else problem)
    average = Average(case)
    best = min(measure(average, *layout) for layout in layouts(4, 3))
    assert measure(average, *read(method.plan(case))) == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize(("method", "measure"), [(pipedream, slowest_stage_s), (dapple, pipeline_s)], ids=["P", "D"])
@pytest.mark.parametrize("seed", SEEDS)
def test_no_layout_of_listed_stages_is_better(seed: int, method: Any, measure: Any) -> None:
    """Where three stages are listed, the plan is best of those with three, on devices in the order given."""
    case = Case(tiny(seed, layers=5, devices=4, samples=3, warmup=(5, 3, 1)))
    average = Average(case)
    draft = method.plan(case)
    best = min(measure(average, *layout) for layout in layouts(5, 4) if len(layout[1]) == 3)
    assert measure(average, *read(draft)) == pytest.approx(best, rel=1e-12)
    assert [device for stage in draft.stages for device in stage.devices] == [0, 1, 2, 3]


@pytest.mark.parametrize("link", [0.02, 0.3, 5.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_dapple_estimates_what_it_says(seed: int, link: float) -> None:
    """The L by which a plan was chosen is T_w + T_s + T_e of that plan, all-reduces of late stages included."""
    problem = tiny(seed, layers=8, devices=6, samples=6, link=link)
    heavy = tuple(
        dataclasses.replace(layer, param_bytes=3**k * 900, trainable_bytes=None, gradient_bytes=4 * layer.output_bytes)
        for k, layer in enumerate(problem.layers)
    )
    for case in (Case(problem), Case(dataclasses.replace(problem, layers=heavy, warmup=(9, 7, 5, 3)))):
        draft, latency_s = dapple.estimated(case)
        assert latency_s == pytest.approx(pipeline_s(Average(case), *read(draft)), rel=1e-12)


@pytest.mark.parametrize("method", [pipedream, dapple], ids=["pipedream", "dapple"])
def test_uneven_devices_share_evenly(method: Any) -> None:
    """On fast links and with light weights the cluster is one group; 7 samples on 3 devices are 3, 2, 2."""
    links = tuple(tuple(None if a == b else 1e9 for b in range(3)) for a in range(3))
    draft = method.plan(Case(drawn(micro_batch=7, bandwidth_bytes_per_s=links)))
    assert draft.stages == (Stage(0, 3, (0, 1, 2), (3, 2, 2)),)


@pytest.mark.parametrize("method", [pipedream, dapple], ids=["pipedream", "dapple"])
def test_no_group_has_more_devices_than_samples(method: Any) -> None:
    """One sample: three stages of one device each, and five devices on two layers leave the three slowest out."""
    assert [stage.samples for stage in method.plan(Case(drawn(micro_batch=1))).stages] == [(1,)] * 3
    case = Case(tiny(3, layers=2, devices=5, samples=1))
    fast = np.argsort(case.forward_s[:, 1, -1] + case.backward_s[:, 1, -1])[:2]
    assert {device for stage in method.plan(case).stages for device in stage.devices} == set(fast.tolist())


# hetpipe ------------------------------------------------------------------------------------------------------------


def test_workers_are_of_like_mix() -> None:
    """Fastest first, dealt in turn and back: the fastest of six meets the slowest."""
    case = Case(tiny(1, devices=6))
    order = np.argsort(case.forward_s[:, -1, -1] + case.backward_s[:, -1, -1]).tolist()
    assert hetpipe.equal_distribution(case, 2) == [[order[k] for k in (0, 3, 4)], [order[k] for k in (1, 2, 5)]]


@given(periods_s=st.lists(st.integers(0, 9), min_size=1, max_size=3), more=st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_micro_batches_are_shared_best(periods_s: list[int], more: int) -> None:
    """No other sharing, at least one each, lets the last worker end earlier."""
    total, count = len(periods_s) + more, len(periods_s)

    def ends(shares: list[int] | tuple[int, ...]) -> float:
        return max(period * m for period, m in zip(periods_s, shares, strict=True))

    found = hetpipe.share([float(period) for period in periods_s], total)
    ways = [shares for shares in product(range(1, total + 1), repeat=count) if sum(shares) == total]
    assert sum(found) == total
    assert min(found) >= 1
    assert ends(found) == min(map(ends, ways))


def test_steady_run_is_its_slowest_stage() -> None:
    """A nano with one layer of 3 s beside a tx2 with two of 1.5 s: a micro-batch every 3 s, transfers hidden."""
    case = Case(drawn(latency_s=((None, 0.0, 0.0), (0.0, None, 0.0), (0.0, 0.0, None))))
    draft = Draft((Stage(0, 2, (2,), (2,)), Stage(2, 3, (0,), (2,))), (5, 2))
    assert hetpipe.steady_s(case, draft, 4) == pytest.approx(12.0)


def test_server_by_hand() -> None:
    """Where the second worker is the tx2 alone, it is the server, and only the first's 3000 B cross: 15 s."""
    workers = [two_stages(0, 1), Draft((Stage(0, 3, (2,), (2,)),), (1,))]
    assert hetpipe.server(Case(drawn()), workers, [2, 3]) == (2, 15.0)
    assert hetpipe.server(Case(drawn()), workers[:1], [5]) == (None, 0.0)


def test_server_shares_its_port() -> None:
    """Of two like pipelines, the device with most weights in the less busy one: 4000 B of others take 20 s, and the
    inputs of its own 2 micro-batches 1 s each."""
    nano, links = drawn().devices[0], tuple(tuple(None if a == b else 200.0 for b in range(4)) for a in range(4))
    case = Case(
        drawn(
            devices=tuple(dataclasses.replace(nano, name=f"nano-{k}") for k in range(4)),
            forward_s=drawn().forward_s[:1] * 4,
            backward_s=drawn().backward_s[:1] * 4,
            bandwidth_bytes_per_s=links,
            latency_s=links,
        )
    )
    assert hetpipe.server(case, [two_stages(0, 1), two_stages(2, 3)], [3, 2]) == (3, 22.0)


def two_stages(first: int, second: int) -> Draft:
    """One layer on the first device, two on the second."""
    return Draft((Stage(0, 1, (first,), (2,)), Stage(1, 3, (second,), (2,))), (3, 1))


def test_slow_links_mean_one_worker() -> None:
    """Where exchanging the model would take longest, all devices are one pipeline, whose round is that of its run."""
    found = hetpipe.plan(Case(drawn(layers=tuple(_heavy(layer) for layer in drawn().layers))))
    assert len(found.virtual_workers) == 1
    assert found.round_s == found.virtual_workers[0].busy_s
    assert found.volume_bytes == 2 * 200 * 10


def test_fast_links_mean_more_workers() -> None:
    """Where links cost nothing, workers of unlike speed share five micro-batches; the server's device also holds all
    trained weights."""
    links = tuple(tuple(None if a == b else 1e9 for b in range(3)) for a in range(3))
    found = hetpipe.plan(Case(drawn(layers=drawn().layers[:1], **_one_layer(), bandwidth_bytes_per_s=links)))
    assert sorted(worker.micro_batches for worker in found.virtual_workers) == [1, 1, 3]
    assert found.round_s == pytest.approx(4.5)
    assert found.server == 0
    assert found.memory_bytes == (4000 + 400 + 1000, 4400, 4400)


def _heavy(layer: Any) -> Any:
    return dataclasses.replace(layer, param_bytes=10**6)


def _one_layer() -> dict[str, Any]:
    problem = drawn()
    return {
        "forward_s": tuple(row[:1] for row in problem.forward_s),
        "backward_s": tuple(row[:1] for row in problem.backward_s),
    }
