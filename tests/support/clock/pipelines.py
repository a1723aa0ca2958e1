"""Small pipelines in ticks of 1 ns, by hand and from hypothesis, and their traces as text."""

from hypothesis import strategies as st

from fleetune.clock import Member, Pipeline, PipelineStage, PipelineTrace

TICK_BYTES_PER_S = 1e9
"""One byte per tick."""


def uniform(
    stages: list[list[tuple[int, int, int]]],
    *,
    warmups: list[int],
    cut_bytes: list[tuple[int, int]],
    micro_batches: int,
    latency: int = 0,
    trainable_bytes: int = 0,
) -> Pipeline:
    """Stages as lists of (samples, forward, backward) in ticks; every link carries a byte per tick."""
    device = iter(range(100))
    count = sum(len(members) for members in stages)
    made = tuple(
        PipelineStage(
            members=tuple(
                Member(device=next(device), samples=samples, forward_ns=forward, backward_ns=backward)
                for samples, forward, backward in members
            ),
            warmup=warmup,
            trainable_bytes=trainable_bytes,
            output_bytes=out,
            gradient_bytes=back,
        )
        for members, warmup, (out, back) in zip(stages, warmups, [*cut_bytes, (0, 0)], strict=True)
    )
    return Pipeline(
        stages=made,
        micro_batches=micro_batches,
        bandwidth_bytes_per_s=((TICK_BYTES_PER_S,) * count,) * count,
        latency_s=((latency * 1e-9,) * count,) * count,
    )


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    """Pipelines of up to 3 stages on up to 3 devices each, with uneven samples and links, ties and zeros."""
    batch = draw(st.integers(1, 4))
    count = draw(st.integers(1, 3))
    micro_batches = draw(st.integers(1, 4))
    warmups = sorted(draw(st.lists(st.integers(1, 6), min_size=count, max_size=count)), reverse=True)
    tick = st.integers(0, 4)
    stages, device = [], 0
    for p in range(count):
        members = []
        for samples in _deal(draw, batch):
            members.append(Member(device=device, samples=samples, forward_ns=draw(tick), backward_ns=draw(tick)))
            device += 1
        last = p == count - 1
        out, back = (0, 0) if last else (draw(st.integers(0, 3)), draw(st.integers(0, 3)))
        stages.append(
            PipelineStage(
                members=tuple(members),
                warmup=warmups[p],
                trainable_bytes=draw(st.integers(0, 9)),
                output_bytes=out,
                gradient_bytes=back,
            )
        )
    speed = st.sampled_from([0.5e9, 1e9, 2e9])
    latency = st.sampled_from([0.0, 1e-9, 3e-9])
    return Pipeline(
        stages=tuple(stages),
        micro_batches=micro_batches,
        bandwidth_bytes_per_s=tuple(tuple(draw(speed) for _ in range(device)) for _ in range(device)),
        latency_s=tuple(tuple(draw(latency) for _ in range(device)) for _ in range(device)),
    )


def _deal(draw: st.DrawFn, batch: int) -> list[int]:
    """Split `batch` samples into 1 to 3 parts."""
    parts = draw(st.integers(1, min(3, batch)))
    cuts = sorted(draw(st.sets(st.integers(1, batch - 1), min_size=parts - 1, max_size=parts - 1))) if parts > 1 else []
    edges = [0, *cuts, batch]
    return [b - a for a, b in zip(edges, edges[1:], strict=False)]


def picture(simulation: PipelineTrace, width: int) -> list[str]:
    """Rows of work first (`0` is a stage's only device, `1.2` place 2 of stage 1), then rows of links (`0>1`)."""
    rows: dict[str, list[str]] = {}
    for task in simulation.tasks:
        _draw(rows, _seat(task.stage, task.place), task.letter, task.micro_batch, (task.start_ns, task.end_ns), width)
    for t in simulation.transfers:
        name = f"{_seat(*t.sender)}>{_seat(*t.receiver)}"
        _draw(rows, name, t.letter, t.micro_batch, (t.start_ns, t.end_ns), width)
    for reduce in simulation.reduces:
        rows[f"R{reduce.stage}"] = list("." * width)
        rows[f"R{reduce.stage}"][reduce.start_ns : reduce.end_ns] = "R" * (reduce.end_ns - reduce.start_ns)
    return [f"{name:>7} {''.join(rows[name])}" for name in sorted(rows, key=lambda n: (">" in n, n))]


def _seat(stage: int, place: int) -> str:
    return f"{stage}.{place}"


def _draw(
    rows: dict[str, list[str]], name: str, letter: str, micro_batch: int, span: tuple[int, int], width: int
) -> None:
    row = rows.setdefault(name, list("." * width))
    mark = str(micro_batch) if letter == "F" else "abcdefghij"[micro_batch]
    assert all(cell == "." for cell in row[span[0] : span[1]]), f"{name} does two things at once"
    row[span[0] : span[1]] = mark * (span[1] - span[0])
