"""hetpipe: asynchronous data parallelism between pipelines, with a parameter server.

Park, J. H. et al.: HetPipe: Enabling Large DNN Training on (Whimpy) Heterogeneous GPU Clusters through Integration of
Pipelined Model Parallelism and Data Parallelism. USENIX ATC 2020, arXiv:2005.14038. Devices form virtual workers of
similar speed (its policy `equal distribution`: fastest first, in turn). Each is a pipeline of one device a stage,
cut so that the slowest stage, transfers into it included, is as fast as possible. Once a round each worker pushes its
gradients of the whole model to a parameter server and pulls the weights from it (wave synchronous parallel). The number
of workers is the best one by its own estimate.

Its round is its own, not the synchronous one: the time in which all workers together process M micro-batches, each in
the steady run of its pipeline by the exact simulation, while the server exchanges the whole model with each worker; the
longer of the slowest pipeline and the server's busier port, which its own pipeline uses as well. That flatters it: no
filling and draining, no transfer waits for one of another worker or of the server, and stale weights cost nothing.

It takes uneven devices and bandwidths into account; it ignores memory (as in Asteroid's comparison) and latency in its
cuts, and older versions of weights that a staleness bound keeps are not counted in its memory.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from fleetune.arrays import Floats, Ints
from fleetune.clock.pipeline_simulation import simulate
from fleetune.solving.hpp.chain_cuts import best_cuts, run_edges
from fleetune.solving.hpp.draft import Draft, DraftStage, hetpipe_bytes, layout_of, peak_bytes
from fleetune.solving.hpp.instance import Instance, whole_model_s

RUNS = 256
"""Longer chains of layers are joined into this many runs."""


class VirtualWorker(NamedTuple):
    """A virtual worker of a plan."""

    draft: Draft
    micro_batches: int
    """Number of a round's M micro-batches that it processes."""
    busy_s: float
    """Seconds for these in the steady state of its pipeline."""


class HetPipe(NamedTuple):
    """An asynchronous plan and its costs."""

    virtual_workers: tuple[VirtualWorker, ...]
    round_s: float
    """Maximum of the slowest worker's and the server's busier port's seconds."""
    server: int | None
    """Device of the parameter server; None for a single worker, which needs none."""
    server_s: float
    """Seconds per round on its busier port: pushes or pulls of all workers and traffic of its own pipeline."""
    volume_bytes: int
    """Bytes per round, Asteroid eq. (1)."""
    memory_bytes: tuple[int, ...]
    """[device]: peak bytes, 0 where unused; the server's device also holds the trainable weights."""


class _WorkerCandidate(NamedTuple):
    """A virtual worker while numbers of workers are compared."""

    draft: Draft
    period_s: float
    """Seconds of its slowest stage, transfers included: the time per micro-batch."""


def plan(instance: Instance) -> HetPipe:
    """The plan with the number of workers whose estimate is best; each has as many stages as warm-ups are listed."""
    listed = instance.problem.warmup
    stages = 1 if isinstance(listed, str) else len(listed)
    best: tuple[float, list[_WorkerCandidate], list[int]] | None = None
    for count in range(1, min(instance.devices // stages, instance.micro_batches) + 1):
        candidates = [_worker_candidate(instance, group) for group in equal_distribution(instance, count)]
        shares = split_micro_batches([candidate.period_s for candidate in candidates], instance.micro_batches)
        busy_s = max(candidate.period_s * m for candidate, m in zip(candidates, shares, strict=True))
        estimate_s = max(busy_s, best_server(instance, [candidate.draft for candidate in candidates], shares)[1])
        if best is None or estimate_s < best[0]:
            best = estimate_s, candidates, shares
    assert best is not None, "one worker is always possible"
    return _costed(instance, [candidate.draft for candidate in best[1]], best[2])


def equal_distribution(instance: Instance, count: int) -> list[list[int]]:
    """Groups of devices for `count` workers: fastest first, dealt in turn, every other turn backwards."""
    groups: list[list[int]] = [[] for _ in range(count)]
    for k, device in enumerate(np.argsort(whole_model_s(instance), kind="stable").tolist()):
        turn, place = divmod(k, count)
        groups[place if turn % 2 == 0 else count - 1 - place].append(device)
    return groups


def split_micro_batches(periods_s: list[float], micro_batches: int) -> list[int]:
    """Micro-batches of every worker, at least one, that minimise the end of the last worker."""
    shares = [1] * len(periods_s)
    if min(periods_s) > 0:
        even_s = (micro_batches - len(shares)) / sum(1 / period_s for period_s in periods_s)
        shares = [max(1, int(even_s / period_s)) for period_s in periods_s]
    for _ in range(micro_batches - sum(shares)):
        ends_s = [period_s * (m + 1) for period_s, m in zip(periods_s, shares, strict=True)]
        shares[int(np.argmin(ends_s))] += 1
    return shares


def best_server(instance: Instance, drafts: list[Draft], shares: list[int]) -> tuple[int | None, float]:
    """The device that is the best parameter server, and the seconds per round on its busier port.

    Each device of a worker pushes and pulls the weights of its own layers; the server's own do not cross a link. Its
    ports also carry what its own pipeline sends and receives.
    """
    if len(drafts) == 1:
        return None, 0.0
    per_byte_s, held = 1 / instance.bandwidth, np.zeros(instance.devices)
    own_in_s, own_out_s = np.zeros(instance.devices), np.zeros(instance.devices)
    for draft, micro_batches in zip(drafts, shares, strict=True):
        for stage in draft.stages:
            held[stage.devices[0]] = float(instance.trainable_bytes[stage.end] - instance.trainable_bytes[stage.first])
        for low, high in pairwise(draft.stages):
            ends = low.devices[0], high.devices[0]
            for (a, b), size in (
                (ends, instance.output_bytes[low.end]),
                (ends[::-1], instance.gradient_bytes[low.end]),
            ):
                lasts_s = micro_batches * instance.samples * float(size) * per_byte_s[a, b]
                own_out_s[a] += lasts_s
                own_in_s[b] += lasts_s
    busier_s = np.maximum(held @ per_byte_s + own_in_s, per_byte_s @ held + own_out_s)
    return int(np.argmin(busier_s)), float(np.min(busier_s))


def _worker_candidate(instance: Instance, group: list[int]) -> _WorkerCandidate:
    """Cut the model for devices given fastest first; devices beyond the last stage are left out."""
    listed = instance.problem.warmup
    stages = min(instance.layers, len(group)) if isinstance(listed, str) else len(listed)
    devices = sorted(group[:stages], key=lambda device: -instance.memory_bytes[device])
    edges = run_edges(instance, max(RUNS, stages))

    def seconds(p: int) -> Floats:
        return _stage_s(instance, devices, p, edges)

    cuts = best_cuts(stages, seconds)
    assert cuts is not None, "all costs are finite"
    period_s = max(float(seconds(p)[cuts[p], cuts[p + 1]]) for p in range(stages))
    spans = zip(edges[cuts[:-1]].tolist(), edges[cuts[1:]].tolist(), devices, strict=True)
    parts = tuple(DraftStage(first, end, (device,), (instance.samples,)) for first, end, device in spans)
    return _WorkerCandidate(Draft(parts, tuple(instance.warmups(stages))), period_s)


def _stage_s(instance: Instance, devices: list[int], p: int, edges: Ints) -> Floats:
    """[from edge, to edge]: seconds per micro-batch of stage p to compute and to receive activations and gradients."""
    device = devices[p]
    both_s = (instance.forward_s[device, -1] + instance.backward_s[device, -1])[edges]
    result: Floats = both_s[None, :] - both_s[:, None]
    if p > 0:
        result += (instance.samples * instance.output_bytes[edges] / instance.bandwidth[devices[p - 1], device])[
            :, None
        ]
    if p < len(devices) - 1:
        result += (instance.samples * instance.gradient_bytes[edges] / instance.bandwidth[devices[p + 1], device])[
            None, :
        ]
    return result


def _costed(instance: Instance, drafts: list[Draft], shares: list[int]) -> HetPipe:
    workers = tuple(VirtualWorker(d, m, steady_s(instance, d, m)) for d, m in zip(drafts, shares, strict=True))
    where, server_s = best_server(instance, drafts, shares)
    memory = [0] * instance.devices
    for draft in drafts:
        for stage, k in zip(draft.stages, draft.warmups, strict=True):
            memory[stage.devices[0]] = peak_bytes(instance, stage, k, instance.samples)
    if where is not None:
        memory[where] += int(instance.trainable_bytes[-1])
    return HetPipe(
        virtual_workers=workers,
        round_s=max(server_s, *(worker.busy_s for worker in workers)),
        server=where,
        server_s=server_s,
        volume_bytes=hetpipe_bytes(instance, zip(drafts, shares, strict=True)),
        memory_bytes=tuple(memory),
    )


def steady_s(instance: Instance, draft: Draft, micro_batches: int) -> float:
    """Seconds that `micro_batches` more add to a filled pipeline, by the exact simulation."""
    layout = layout_of(instance, draft)
    filled = max(draft.warmups) + len(draft.stages)
    rounds_ns = []
    for count in (filled, filled + micro_batches):
        layout.size[1] = count
        rounds_ns.append(simulate(layout, {}).round_ns)
    return (rounds_ns[1] - rounds_ns[0]) / 1e9
