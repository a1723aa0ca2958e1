"""The longest round that can be counted: beyond it, nanoseconds in 64 bits wrap, and the round would seem short."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise, permutations

from fleetune.clock.pipeline import Pipeline, PipelineStage
from fleetune.errors import Refused

MAX_ROUND_S = 4e9
"""Limit of all work and traffic of a round in sequence; 64 bits hold 9.2e9 s in nanoseconds."""


def countable(owner: str, seconds: float) -> float:
    """Return the seconds. Refused, naming the owner (a device or a link), if no round can be as long."""
    if not seconds <= MAX_ROUND_S:
        raise Refused(
            f"{owner}: a round could come to {seconds:.3g} s by it, more than can be counted ({MAX_ROUND_S:.3g}); "
            "check the unit of its times, or of its rate and latency"
        )
    return seconds


def check_countable(pipeline: Pipeline, names: Sequence[str]) -> None:
    """Refuse a pipeline whose work and traffic in sequence cannot be counted, naming what takes longest.

    names: of the devices, in the order of the pipeline's links.
    """
    found = defaultdict[str, float](float)
    for stage in pipeline.stages:
        for member in stage.members:
            passes_ns = pipeline.micro_batches * (member.forward_ns + member.backward_ns)
            found[f"device {names[member.device]}"] += passes_ns / 1e9
        if len(stage.members) > 1:
            owner, seconds = max(_ring_s(pipeline, stage, names), key=lambda each: each[1])
            found[owner] += seconds
    for low, high in pairwise(pipeline.stages):
        for owner, seconds in _cut_s(pipeline, low, high, names):
            found[owner] += seconds
    countable(max(found, key=found.__getitem__), sum(found.values()))


def _cut_s(
    pipeline: Pipeline, low: PipelineStage, high: PipelineStage, names: Sequence[str]
) -> Iterator[tuple[str, float]]:
    """Yield each link that crosses a cut, and the seconds of all its messages in a round."""
    first = 0
    for sender in low.members:
        end, begin = first + sender.samples, 0
        for receiver in high.members:
            shared = min(end, begin + receiver.samples) - max(first, begin)
            begin += receiver.samples
            if shared > 0:
                ways = ((sender, receiver, low.output_bytes), (receiver, sender, low.gradient_bytes))
                for a, b, size in ways:
                    sent_s = _message_s(pipeline, a.device, b.device, shared * size)
                    yield f"link {names[a.device]}>{names[b.device]}", pipeline.micro_batches * sent_s
        first = end


def _ring_s(pipeline: Pipeline, stage: PipelineStage, names: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Yield each link of a group, and the seconds of the all-reduce if all of the group's were like it."""
    count = len(stage.members)
    for a, b in permutations((member.device for member in stage.members), 2):
        part_s = _message_s(pipeline, a, b, stage.trainable_bytes / count)
        yield f"link {names[a]}>{names[b]}", 2 * (count - 1) * part_s


def _message_s(pipeline: Pipeline, source: int, target: int, size: float) -> float:
    return pipeline.latency_s[source][target] + size / pipeline.bandwidth_bytes_per_s[source][target]
