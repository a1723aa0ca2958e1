"""Traces as text, one column per tick of 1 ns: digits are forwards, letters (a is 0) backwards."""

from fleetune.clock import PipelineTrace


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
