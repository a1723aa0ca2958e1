"""A second, slow and simple implementation of the contract for kind hpp; it shares no code with the solver."""

from collections.abc import Sequence

from fleetune.solving.hpp.draft import Draft
from fleetune.solving.hpp.problem import Problem, Share, Solution, Stage
from tests.support.clock import reference
from tests.support.clock.pipelines import Member, Pipeline
from tests.support.clock.pipelines import PipelineStage as ClockStage

POLICIES = {
    "2(P-p)-1": lambda left: 2 * left - 1,
    "2(P-p)": lambda left: 2 * left,
    "P-p": lambda left: left,
    "2(P-p)+1": lambda left: 2 * left + 1,
}
Rows = tuple[tuple[tuple[float, ...], ...], ...]


def line(sizes: tuple[int, ...], seconds: tuple[float, ...], samples: int) -> float:
    """Interpolate a time linearly; beyond the ends extrapolate along the line through the two nearest sizes."""
    if len(sizes) == 1:
        return seconds[0] * samples / sizes[0]
    right = next((k for k in range(1, len(sizes)) if samples <= sizes[k]), len(sizes) - 1)
    left = right - 1
    slope = (seconds[right] - seconds[left]) / (sizes[right] - sizes[left])
    return seconds[left] + slope * (samples - sizes[left])


def task_s(problem: Problem, rows: Rows, device: int, samples: int, layers: tuple[int, int]) -> float:
    """Seconds of layers [first, end) on so many samples."""
    return sum(line(problem.batch_sizes, rows[device][layer], samples) for layer in range(*layers))


def trainable(problem: Problem, layers: tuple[int, int]) -> int:
    """Trainable bytes of layers [first, end)."""
    chosen = problem.layers[layers[0] : layers[1]]
    return sum(x.param_bytes if x.trainable_bytes is None else x.trainable_bytes for x in chosen)


def crossing(problem: Problem, edge: int) -> tuple[int, int]:
    """Bytes per sample across a cut before layer `edge`, there and back."""
    layer = problem.layers[edge - 1]
    return layer.output_bytes, layer.output_bytes if layer.gradient_bytes is None else layer.gradient_bytes


def peak_bytes(problem: Problem, layers: tuple[int, int], warmup: int, samples: int) -> float:
    """params + trainable (1 + optimizer) + snapshots trainable (1 + optimizer) + min(K, M) samples activations."""
    chosen = problem.layers[layers[0] : layers[1]]
    own = trainable(problem, layers) * (1 + problem.optimizer_bytes_per_param_byte)
    kept = min(warmup, problem.micro_batches) * samples * sum(x.activation_bytes for x in chosen)
    return sum(x.param_bytes for x in chosen) + own + problem.snapshots * own + kept


def peaks(problem: Problem, plan: Solution) -> dict[str, float]:
    """Peak bytes of every device that takes part."""
    return {
        share.name: peak_bytes(problem, stage.layers, stage.warmup, share.samples)
        for stage in plan.stages
        for share in stage.devices
    }


def fits(problem: Problem, plan: Solution) -> bool:
    """Tell whether every device is within its budget."""
    need = peaks(problem, plan)
    return all(need.get(device.name, 0) <= device.memory_bytes for device in problem.devices)


def assert_plan(problem: Problem, stages: tuple[Stage, ...]) -> None:
    """Assert that the stages have the structure that the contract requires."""
    assert [stage.layers[0] for stage in stages] == [0, *(stage.layers[1] for stage in stages[:-1])]
    assert stages[-1].layers[1] == len(problem.layers)
    assert all(first < end for first, end in (stage.layers for stage in stages))
    names = [share.name for stage in stages for share in stage.devices]
    assert len(set(names)) == len(names)
    assert set(names) <= {device.name for device in problem.devices}
    for stage in stages:
        assert min(share.samples for share in stage.devices) >= 1
        assert sum(share.samples for share in stage.devices) == problem.micro_batch
    given, count = [stage.warmup for stage in stages], len(stages)
    if problem.warmup == "free":
        capped = [min(k, problem.micro_batches) for k in given]
        assert capped == sorted(capped, reverse=True)
        assert min(given) >= 1
    elif isinstance(problem.warmup, str):
        assert given == [POLICIES[problem.warmup](count - p) for p in range(count)]
    else:
        assert given == list(problem.warmup)


def round_s(problem: Problem, plan: Solution) -> float:
    """Seconds of a round by the reference simulation of the clock's tests."""
    place = {device.name: d for d, device in enumerate(problem.devices)}
    stages = []
    for stage in plan.stages:
        end = stage.layers[1]
        there, back = (0, 0) if end == len(problem.layers) else crossing(problem, end)
        members = []
        for share in stage.devices:
            device = place[share.name]
            there_s = task_s(problem, problem.forward_s, device, share.samples, stage.layers)
            back_s = task_s(problem, problem.backward_s, device, share.samples, stage.layers)
            members.append(Member(device, share.samples, round(there_s * 1e9), round(back_s * 1e9)))
        stages.append(
            ClockStage(
                members=tuple(members),
                warmup=stage.warmup,
                trainable_bytes=trainable(problem, stage.layers),
                output_bytes=there,
                gradient_bytes=back,
            )
        )

    def filled(rows: tuple[tuple[float | None, ...], ...]) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(x or 0.0 for x in row) for row in rows)

    pipeline = Pipeline(
        stages=tuple(stages),
        micro_batches=problem.micro_batches,
        bandwidth_bytes_per_s=filled(problem.bandwidth_bytes_per_s),
        latency_s=filled(problem.latency_s),
    )
    return reference.play(pipeline)[0] / 1e9


def steps(problem: Problem, stages: tuple[Stage, ...]) -> list[tuple[float, float, float]]:
    """(E_f, E_b, T_a) of execution and communication steps in turn, Asteroid eq. (5) and (8)."""
    place = {device.name: d for d, device in enumerate(problem.devices)}
    bandwidth, latency = problem.bandwidth_bytes_per_s, problem.latency_s
    result: list[tuple[float, float, float]] = []
    for p, stage in enumerate(stages):
        group = [place[share.name] for share in stage.devices]
        if p > 0:
            before = [place[share.name] for share in stages[p - 1].devices]
            ways = []
            for size, pairs in zip(
                crossing(problem, stage.layers[0]),
                ([(a, b) for a in before for b in group], [(b, a) for a in before for b in group]),
                strict=True,
            ):
                slowest, late = min(bandwidth[a][b] for a, b in pairs), max(latency[a][b] for a, b in pairs)
                ways.append(problem.micro_batch * size / slowest + late)
            result.append((ways[0], ways[1], 0.0))
        there, back = (
            max(task_s(problem, rows, place[share.name], share.samples, stage.layers) for share in stage.devices)
            for rows in (problem.forward_s, problem.backward_s)
        )
        g, reduce = len(group), 0.0
        if g > 1:
            slowest = min(bandwidth[a][b] for a in group for b in group if a != b)
            reduce = 2 * (g - 1) * trainable(problem, stage.layers) / (g * slowest)
        result.append((there, back, reduce))
    return result


def latency_s(micro_batches: int, parts: Sequence[tuple[float, float, float]]) -> float:
    """Asteroid eq. (4)-(6) of steps (E_f, E_b, T_a), word for word."""
    both = [there + back for there, back, _ in parts]
    weight = [micro_batches * both[s] + sum(both[:s]) for s in range(len(parts))]
    dm = weight.index(max(weight))
    totals = []
    for s, (_, _, reduce) in enumerate(parts):
        waiting = sum(there for there, _, _ in parts[:s])
        executing = micro_batches * both[dm] + (sum(both[s:dm]) if s < dm else -sum(both[dm:s]))
        totals.append(waiting + executing + reduce)
    return max(totals)


def formula_s(problem: Problem, stages: tuple[Stage, ...]) -> float:
    """Eq. (4) of a plan."""
    return latency_s(problem.micro_batches, steps(problem, stages))


def stages_of(problem: Problem, draft: Draft) -> tuple[Stage, ...]:
    """Convert a draft to the stages of a solution."""
    return tuple(
        Stage(
            layers=(stage.first, stage.end),
            devices=tuple(
                Share(name=problem.devices[d].name, samples=y)
                for d, y in zip(stage.devices, stage.samples, strict=True)
            ),
            warmup=k,
        )
        for stage, k in zip(draft.stages, draft.warmups, strict=True)
    )
