"""Timing of a tiny model unit by unit, and the messages of the measuring process."""

import json
import time
import weakref
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from fleetune.contracts import json_io
from fleetune.profiling import measuring_process
from fleetune.profiling import timing as module
from fleetune.profiling.timing import (
    WARM_PASSES,
    Clocks,
    PassLog,
    TimedData,
    TimingSettings,
    measure_units,
    usual_times,
)
from tests.support.models.instances import batch, recorded
from tests.support.preparation.instances import PreparedFolders
from tests.support.profiling.instances import FAMILY, measure_task, prepared
from tests.support.profiling.unit_costs import SIZES, costs, loader
from tests.support.training.model_families import BY_NAME


@pytest.mark.parametrize("name", ["bert", "llama", "resnet"])
def test_every_unit_has_a_cost_for_every_batch_size(name: str, tmp_path: Path) -> None:
    """Times are above zero, and work and memory grow with the batch size."""
    ready = recorded(BY_NAME[name], tmp_path)

    def inputs(size: int) -> dict[int, Any]:
        rows = batch(BY_NAME[name], size + 1)  # batch norms need two samples
        return {number: rows[n] for n, number in ready.graph.inputs.items()}

    effort = TimingSettings(batch_sizes=(2, 4), passes=1)
    data = TimedData(inputs=lambda size: inputs(size - 1))
    got = dict(measure_units(ready.graph, [list(ready.units)], loader(ready), data, effort, PassLog()))
    assert tuple(got) == ready.units
    for cost in got.values():
        assert len(cost.forward_s) == len(cost.backward_s) == len(cost.activation_bytes) == len(cost.flops) == 2
        assert min(cost.forward_s) > 0
        assert cost.activation_bytes[0] <= cost.activation_bytes[1]
        assert cost.flops[1] == 2 * cost.flops[0]
    assert got[ready.units[-1]].flops[0] > 0
    assert min(got[ready.units[-1]].backward_s) > 0


def test_windows_of_one_unit_see_what_the_whole_model_sees(tmp_path: Path) -> None:
    """Windows of one unit give the same work and memory as the whole model."""
    ready = recorded(FAMILY, tmp_path)
    whole = costs(ready, [list(ready.units)])
    single = costs(ready, [[unit] for unit in ready.units])
    assert tuple(single) == tuple(whole) == ready.units
    for unit in ready.units:
        assert single[unit].flops == whole[unit].flops
        assert single[unit].activation_bytes == whole[unit].activation_bytes


def test_an_emulated_device_counts_its_cpu_time_at_its_pace(tmp_path: Path) -> None:
    """With a quarter of a core one second of CPU time counts as four; without a quota wall time counts."""
    ready = recorded(FAMILY, tmp_path)
    cpu_s, wall_s = count(0.0, 1.0), count(0.0, 7.0)
    clocks = Clocks(cpu=lambda: next(cpu_s), wall=lambda: next(wall_s))
    for cores, seconds in ((0.25, 4.0), (2.0, 1.0), (None, 7.0)):
        for cost in costs(ready, [list(ready.units)], cores=cores, clocks=clocks).values():
            assert cost.forward_s == cost.backward_s == [seconds] * len(SIZES)


def test_an_emulated_device_rests_between_passes_as_in_a_training(tmp_path: Path) -> None:
    """Bug: the passes of a slow device came one after the other in its profile, and after a rest in its training, which
    took up to a quarter more processor time: rounds were forecast too short."""
    ready, cores = recorded(FAMILY, tmp_path), 0.5
    rows, marks_s = batch(FAMILY, 2), list[tuple[float, float]]()
    data = TimedData(inputs=lambda _: {number: rows[name] for name, number in ready.graph.inputs.items()})
    log = PassLog(after_pass=lambda: marks_s.append((time.perf_counter(), time.thread_time())))
    settings = TimingSettings(batch_sizes=(2,), passes=5, cores=cores)
    dict(measure_units(ready.graph, [list(ready.units)], loader(ready), data, settings, log))
    wall_s, cpu_s = (end - start for start, end in zip(marks_s[0], marks_s[-1], strict=True))
    assert wall_s * cores > 0.8 * cpu_s, "but for a little between the passes"


def test_the_quickest_of_several_passes_counts(tmp_path: Path) -> None:
    """The passes that warm up are dropped even if they are the fastest; the minimum of the others counts."""
    ready = recorded(FAMILY, tmp_path)
    spent_s = (1.0, 2.0, 3.0, 9.0, 5.0)  # what everything takes in each pass
    looks = count()
    now_s = [0.0]

    def clock() -> float:
        look = next(looks)
        if look % 2:  # the second of a pair around a piece of work; forward and backward of every unit
            now_s[0] += spent_s[look // (4 * len(ready.units))]
        return now_s[0]

    rows = batch(FAMILY, 2)
    given = {number: rows[name] for name, number in ready.graph.inputs.items()}
    effort = TimingSettings(batch_sizes=(2,), passes=2, clocks=Clocks(wall=clock))
    data = TimedData(inputs=lambda _: given)
    got = dict(measure_units(ready.graph, [list(ready.units)], loader(ready), data, effort, PassLog()))
    for cost in got.values():
        assert cost.forward_s == cost.backward_s == [5.0]


def test_usual_times_of_units_add_up_to_a_usual_pass() -> None:
    """A pause that hits another unit in every pass is in no unit's median, but in every pass; all share it."""
    times = [[1.0 + 3.0 * (k == unit) for k in range(5)] for unit in range(5)]
    assert usual_times(times) == pytest.approx([8 / 5] * 5)
    assert usual_times([[0.0, 0.0], [2.0, 4.0]]) == [0.0, 3.0]
    assert usual_times([[0.0], [0.0]]) == [0.0, 0.0]


class CpuClock:
    """A CPU clock that moves by a second per look, and a wall clock that moves `pace` times as fast."""

    def __init__(self, pace: float) -> None:
        self.cpu_s, self.pace = 0.0, pace

    @property
    def clocks(self) -> Clocks:
        """Both."""
        return Clocks(cpu=self._look_s, wall=lambda: self.pace * self.cpu_s)

    def _look_s(self) -> float:
        self.cpu_s += 1.0
        return self.cpu_s


def test_a_device_that_falls_short_of_its_quota_says_by_how_much(tmp_path: Path) -> None:
    """Wall time over CPU time at the quota's pace is logged for every pass, at least 1; where wall time counts, 1."""
    ready = recorded(FAMILY, tmp_path)
    for pace, cores, stretch in ((5.0, 0.25, 1.25), (3.0, 0.25, 1.0), (9.0, None, 1.0)):
        log = PassLog()
        costs(ready, [list(ready.units)], log, cores=cores, clocks=CpuClock(pace).clocks)
        assert log.stretches == [stretch] * (2 * len(SIZES)), "the pass that warms up is not counted"


def test_reading_inputs_and_the_loss_belong_to_the_ends_of_the_model(tmp_path: Path) -> None:
    """The first unit's forward reads inputs, the last one's computes the loss, whose gradient its backward starts
    from."""
    ready = recorded(FAMILY, tmp_path)
    clock = CpuClock(1.0)
    rows = batch(FAMILY, 2)

    def read(size: int) -> dict[int, Any]:
        clock.cpu_s += 10
        return {number: rows[name] for name, number in ready.graph.inputs.items()}

    def loss(size: int, output: torch.Tensor) -> torch.Tensor:
        clock.cpu_s += 100
        return output.sum() * 0.0

    for windows in ([list(ready.units)], [[unit] for unit in ready.units]):
        effort = TimingSettings(batch_sizes=(2,), passes=1, cores=1.0, clocks=clock.clocks)
        data = TimedData(inputs=read, loss=loss)
        got = dict(measure_units(ready.graph, windows, loader(ready), data, effort, PassLog()))
        expected = {ready.units[0]: [11.0], ready.units[-1]: [101.0]}
        assert {unit: cost.forward_s for unit, cost in got.items()} == {u: expected.get(u, [1.0]) for u in ready.units}
        assert all(cost.backward_s == [1.0] for cost in got.values())


def test_a_small_model_is_measured_in_more_passes(tmp_path: Path) -> None:
    """Passes are added while they have not taken their least time, up to a limit; windows divide the time."""
    ready = recorded(FAMILY, tmp_path)
    rows = batch(FAMILY, 2)
    now_s = [0.0]

    def read(size: int) -> dict[int, Any]:
        now_s[0] += 10  # of every pass of the first window
        return {number: rows[name] for name, number in ready.graph.inputs.items()}

    clocks = Clocks(wall=lambda: now_s[0], cpu=lambda: 0.0)
    whole, halves = [list(ready.units)], [list(ready.units[:1]), list(ready.units[1:])]
    cases = ((whole, 0.0, 2), (whole, 15.0, 2), (whole, 100.0, 11), (whole, 1e9, 15), (halves, 100.0, 6 + 15))
    for windows, least_s, passes in cases:
        log = PassLog()
        settings = TimingSettings(batch_sizes=(2,), passes=2, least_s=least_s, cores=1.0, clocks=clocks)
        dict(measure_units(ready.graph, windows, loader(ready), TimedData(inputs=read), settings, log))
        assert len(log.stretches) == passes


def test_a_pass_is_let_go_before_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Activations of a pass are freed before the next pass, so that measuring takes no more memory than training."""
    ready = recorded(FAMILY, tmp_path)
    alive: list[weakref.ref[Any]] = []
    forwards, passes = module.forwards, count()

    def watched(*given: Any) -> Any:
        assert not [ref for ref in alive if ref() is not None]
        next(passes)
        outputs, done = forwards(*given)
        alive[:] = [weakref.ref(value) for _, made in done for value in made.values()]
        return outputs, done

    # replaced: units are run for their bytes too, so that they cannot tell a pass
    monkeypatch.setattr(module, "forwards", watched)
    costs(ready, [list(ready.units)])
    assert next(passes) == 3 * len(SIZES) + WARM_PASSES - 1 and alive


class Event:
    """An event of a GPU whose queue is a second later at each of them; it can be read once all have been waited for."""

    marks = 0
    waited = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.at_s = 0.0

    def record(self) -> None:
        """Stand in the queue behind all others."""
        Event.marks += 1
        self.at_s = float(Event.marks)

    def elapsed_time(self, end: "Event") -> float:
        """Return milliseconds."""
        assert Event.waited >= end.at_s, "it may not have happened yet"
        return (end.at_s - self.at_s) * 1000


def test_a_gpu_is_waited_for_once_a_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: each unit was waited for, which counted the launches of its kernels, and forecasts of a GPU were too long.

    Units lie between two events of its queue, which no unit waits for: here each takes the one second between them.
    """
    ready = recorded(FAMILY, tmp_path)
    waits: list[int] = []

    def synchronize() -> None:
        Event.waited = Event.marks
        waits.append(Event.marks)

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    monkeypatch.setattr(torch.cuda, "manual_seed", lambda seed: None)
    monkeypatch.setattr(torch.cuda, "default_generators", ())
    found = costs(ready, [list(ready.units)])
    assert {second for cost in found.values() for second in (*cost.forward_s, *cost.backward_s)} <= {0.0, 1.0}
    between = {after - before for before, after in zip(waits, waits[1:], strict=False)}
    assert between <= {2 * len(ready.units), 2 * len([c for c in found.values() if max(c.backward_s)])}


def test_units_without_a_gradient_have_no_backward(tmp_path: Path) -> None:
    """Below the first trained parameter backward takes no time, and no gradient is left."""
    ready = recorded(FAMILY, tmp_path, freeze=(r"bert\.embeddings", r"bert\.encoder\.layer\.0"))
    got = costs(ready, [list(ready.units)])
    assert [unit for unit in ready.units if max(got[unit].backward_s) == 0.0] == list(ready.units[:2])


def answer(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Any:
    """Run a measuring process in this one; returns its exit code and lines."""
    json_io.write(measure_task(PreparedFolders.below(folder), **changes), folder / "task.json")
    monkeypatch.setattr("sys.argv", ["worker", "--task", str(folder / "task.json")])
    code = measuring_process.main()
    return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_measuring_process_answers_in_lines_of_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process prints its memory needs, its start, progress by unit, and all costs in the order of units; a small
    device measures in windows."""
    graph, _ = prepared(tmp_path)
    # replaced: this process holds more than so small a device has
    monkeypatch.setattr(measuring_process, "held_bytes", lambda device: 0)
    monkeypatch.setattr(measuring_process, "UNIT_MEMORY_SHARE", 1.0)
    code, lines = answer(tmp_path, capsys, monkeypatch, memory_bytes=300_000)
    loading, measuring, *progress, last = lines
    assert code == 0
    assert loading["event"] == "loading" and loading["runtime_bytes"] > 1 << 20 and loading["unit_bytes"] > 1 << 10
    assert measuring == {"event": "measuring"}
    assert [line["done"] for line in progress] == list(range(1, len(graph.units) + 1))
    assert last["event"] == "costs"
    assert [unit["name"] for unit in last["units"]] == [unit.name for unit in graph.units]
    assert all(len(unit["forward_s"]) == 3 for unit in last["units"])
    assert last["runtime_bytes"] > 1 << 20
    assert last["stretch"] == 1.0 and "spread" in last
    assert "gates" not in last
    assert last["message_wait_s"] >= 0
    assert sum(unit["update_s"] for unit in last["units"]) > 0
    assert last["profiling_s"] >= sum(sum(unit["forward_s"]) + sum(unit["backward_s"]) for unit in last["units"]) > 0


def test_a_device_that_holds_no_unit_is_told_which(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The unit that does not fit is named before anything is loaded."""
    prepared(tmp_path)
    code, lines = answer(tmp_path, capsys, monkeypatch, memory_bytes=1)
    assert code == 65 and [line["event"] for line in lines] == ["loading", "error"]
    assert lines[-1]["message"].startswith("unit bert.embeddings alone takes 0.00 GB at 1 samples")


def test_a_measuring_process_that_fails_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unreadable graph is refused in one line."""
    prepared(tmp_path)
    (tmp_path / "profile" / "graph.json").write_text("{")
    code, lines = answer(tmp_path, capsys, monkeypatch)
    assert code == 64
    assert lines == [{"event": "error", "message": lines[0]["message"]}]
    assert "graph.json: not JSON" in lines[0]["message"]


def test_gates_are_timed_for_a_run_that_scores_heads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer then says what gates cost beyond the heads' share: no gated pass takes less than no time."""
    prepared(tmp_path)
    code, (*_, last) = answer(tmp_path, capsys, monkeypatch, gates=True)
    assert code == 0
    assert set(last["gates"]) == {"skipped", "forward_only"}
    assert all(-1 < cost < float("inf") for way in last["gates"].values() for cost in way.values())
