"""Cached measurements: a device that an earlier run measured is not measured again."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest

from fleetune.contracts import json_io
from fleetune.contracts.profile import Profile
from fleetune.contracts.run_config import Lora
from fleetune.errors import Refused, TryAgain
from fleetune.launching import LocalSites
from fleetune.models.graph import Graph
from fleetune.profiling.cache import MeasurementCache
from fleetune.profiling.measuring_job import measure_fleet
from fleetune.profiling.messages import DeviceMeasurement, minimum_times, parse_measurement
from fleetune.profiling.profile import batch_sizes, profile
from fleetune.profiling.task import ProfilingTask
from tests.support.links.ends import until
from tests.support.profiling.instances import Scripted, ScriptedJob, costs, prepared, profiling_task

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
KEY = "0" * 64
Change = Callable[[ProfilingTask], ProfilingTask]


@dataclass
class Runs:
    """Runs on one cache folder, with a model that was prepared once."""

    folder: Path
    graph: Graph
    kept: Path
    notes: list[str] = field(default_factory=list)

    def task(self, paces: dict[str, float]) -> tuple[ProfilingTask, Scripted]:
        """A task whose devices answer at these paces."""
        launcher = Scripted({d: ScriptedJob([costs(len(self.graph.units), pace)], 0) for d, pace in paces.items()})
        return profiling_task(self.folder, launcher, tuple(paces)), launcher

    def run(
        self, name: str, paces: dict[str, float], change: Change = lambda task: task, anew: bool = False
    ) -> tuple[dict[str, DeviceMeasurement], list[str]]:
        """Run once; returns the measurements and the devices that were measured."""
        task, launcher = self.task(paces)
        own = MeasurementCache(self.kept, name, anew=anew, clock=lambda: NOON)
        task = change(replace(task, cache=own, note=self.notes.append))
        return measure_fleet(task, batch_sizes(task.training.micro_batch_samples)), list(launcher.given)

    @property
    def files(self) -> list[Path]:
        """Files of the cache."""
        return sorted(self.kept.iterdir())


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Graph]:
    """A prepared model that tests only read."""
    folder = tmp_path_factory.mktemp("ready")
    return folder, prepared(folder)[0]


@pytest.fixture
def runs(ready: tuple[Path, Graph], tmp_path: Path) -> Runs:
    """An empty cache."""
    return Runs(*ready, tmp_path / "kept")


def test_the_profile_is_made_of_what_is_kept_and_what_is_new(tmp_path: Path) -> None:
    """A known device has the times and profiling time of the first run; only the new device is measured."""
    runs = Runs(tmp_path, prepared(tmp_path)[0], tmp_path / "kept")
    made = []
    for number, paces in enumerate(({"ann": 1.0}, {"ann": 9.0, "bob": 3.0}, {"ann": 9.0, "bob": 9.0})):
        task, launcher = runs.task(paces)
        made.append(profile(replace(task, cache=MeasurementCache(runs.kept, f"run-{number}"), note=runs.notes.append)))
        assert list(launcher.given) == [["ann"], ["bob"], []][number]
    assert made[1].times_of("ann") == made[0].times_of("ann") and made[1].times_of("ann").profiling_s == 7.0
    assert made[2] == made[1]
    assert json_io.read(Profile, tmp_path / "profile" / "profile.json") == made[2]


def test_a_second_run_measures_the_new_device_only(runs: Runs) -> None:
    """A note names the run that the cached times are of; progress reaches its end even if nothing is left to
    measure."""
    first, asked = runs.run("run-1", {"ann": 1.0})
    assert asked == ["ann"] and runs.notes == []
    second, asked = runs.run("run-2", {"ann": 9.0, "bob": 3.0})
    assert asked == ["bob"] and second["ann"] == first["ann"]
    assert runs.notes == ["ann: times of run-1 reused (same device, model, trainable set and batch sizes)"]
    shares: list[float] = []

    def progress(what: str, done: float, total: float, unit: str = "", detail: str = "") -> None:
        shares.append(done / total)

    third, asked = runs.run("run-3", {"ann": 9.0, "bob": 9.0}, lambda task: replace(task, progress=progress))
    assert asked == [] and third == second and shares == [1.0]


def test_an_entry_says_who_measured_it_and_when(runs: Runs) -> None:
    """An entry names its run and time, lies under its key, and leaves no partial file."""
    runs.run("run-1", {"ann": 1.0})
    (file,) = runs.files
    entry = json.loads(file.read_text())
    assert (entry["run"], entry["moment"]) == ("run-1", NOON.isoformat())
    assert file.name == f"{entry['key']}.json"


def fingerprint(task: ProfilingTask) -> ProfilingTask:
    """Another machine."""
    return replace(
        task, fleet=replace(task.fleet, devices=tuple(replace(d, fingerprint="new") for d in task.fleet.devices))
    )


def quota(task: ProfilingTask) -> ProfilingTask:
    """The same machine with a CPU quota."""
    return replace(
        task, fleet=replace(task.fleet, devices=tuple(replace(d, emulated=True) for d in task.fleet.devices))
    )


def sizes(task: ProfilingTask) -> ProfilingTask:
    """The same number of batch sizes, but other ones."""
    return replace(task, training=replace(task.training, batch_samples=10, micro_batch_samples=5))


def model(**changes: Any) -> Change:
    """Another model, or another trainable set."""
    return lambda task: replace(task, model=replace(task.model, **changes))


@pytest.mark.parametrize(
    "change",
    [
        fingerprint,
        quota,
        sizes,
        model(lora=Lora(r=2, targets=("query",))),
        model(freeze=("bert.embeddings",)),
        model(precision="float64"),
    ],
    ids=["fingerprint", "cores", "batch sizes", "lora", "freeze", "precision"],
)
def test_whatever_could_change_a_time_is_measured_again(change: Change, runs: Runs) -> None:
    """A changed setting has an entry of its own, beside the old one."""
    runs.run("run-1", {"ann": 1.0})
    assert runs.run("run-2", {"ann": 1.0}, change)[1] == ["ann"]
    assert len(runs.files) == 2
    assert runs.run("run-3", {"ann": 1.0}, change)[1] == []


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_another_version_of_what_computes_is_measured_again(
    package: str, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version of torch or transformers is measured again."""
    runs.run("run-1", {"ann": 1.0})
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "new" if name == package else version(name))
    assert runs.run("run-2", {"ann": 1.0})[1] == ["ann"]


def test_the_names_of_devices_and_folders_do_not_count(runs: Runs, tmp_path: Path) -> None:
    """A device is found in the cache under another name and from other folders."""
    runs.run("run-1", {"ann": 1.0})
    other = Path(shutil.copytree(runs.folder / "profile", tmp_path / "other"))

    def elsewhere(task: ProfilingTask) -> ProfilingTask:
        return replace(task, model_folder=other, data_folder=tmp_path / "rows", work=tmp_path / "there")

    assert runs.run("run-2", {"zoe": 1.0}, elsewhere)[1] == []


def test_a_device_that_shares_its_memory_with_a_new_one_is_known(runs: Runs) -> None:
    """A new device on the same machine leaves less memory to the known one, which changes none of its times."""
    runs.run("run-1", {"ann": 1.0})

    def halved(task: ProfilingTask) -> ProfilingTask:
        devices = tuple(replace(d, memory_bytes=d.memory_bytes // 2) for d in task.fleet.devices)
        return replace(task, fleet=replace(task.fleet, devices=devices))

    assert runs.run("run-2", {"ann": 1.0, "bob": 1.0}, halved)[1] == ["bob"]


@pytest.mark.parametrize("name", ["graph.json", "model/config.json"])
def test_another_recorded_model_is_measured_again(name: str, runs: Runs, tmp_path: Path) -> None:
    """A changed graph or configuration is measured again, whatever changed it."""
    runs.run("run-1", {"ann": 1.0})
    other = Path(shutil.copytree(runs.folder / "profile", tmp_path / "other"))
    (other / name).write_text((other / name).read_text() + "\n")
    assert runs.run("run-2", {"ann": 1.0}, lambda task: replace(task, model_folder=other))[1] == ["ann"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: text.replace('"runtime_bytes": 1000', '"runtime_bytes": 1001'),
        lambda text: text.replace("run-1", "run-0"),
        lambda text: text.replace('"answer"', '"answers"'),
    ],
    ids=["cut off", "empty", "a number", "the run", "a name"],
)
def test_a_damaged_entry_is_said_and_replaced(damage: Callable[[str], str], runs: Runs) -> None:
    """A damaged entry gives a note, its device is measured, and the next run finds the new entry."""
    runs.run("run-1", {"ann": 1.0})
    (file,) = runs.files
    file.write_text(damage(file.read_text()))
    made, asked = runs.run("run-2", {"ann": 2.0})
    assert asked == ["ann"] and made["ann"].units[0].forward_s[0] == 2.0
    (said,) = runs.notes
    assert said.startswith(f"ann: measured again, because its cached times are damaged ({file}: ")
    assert runs.files == [file]
    assert runs.run("run-3", {"ann": 9.0})[1] == []
    assert runs.notes[1:] == ["ann: times of run-2 reused (same device, model, trainable set and batch sizes)"]


def test_an_entry_under_another_key_is_damaged(runs: Runs) -> None:
    """A renamed file is refused, because it does not hold its key."""
    runs.run("run-1", {"ann": 1.0})
    (file,) = runs.files
    file.rename(file.with_name(f"{KEY}.json"))
    with pytest.raises(Refused, match="is not what was written"):
        MeasurementCache(runs.kept, "run-2").load(KEY)


def test_two_devices_alike_are_both_measured_at_first(runs: Runs) -> None:
    """Identical devices have their own times in their first run; later runs take the minimum of both, because noise
    only adds time."""
    first, asked = runs.run("run-1", {"ann": 1.0, "eve": 2.0})
    assert sorted(asked) == ["ann", "eve"] and len(runs.files) == 1
    assert first["eve"].units[0].forward_s[0] == 2.0
    second, asked = runs.run("run-2", {"ann": 9.0, "eve": 9.0, "zoe": 9.0})
    assert asked == []
    assert second["ann"].units == second["zoe"].units == first["ann"].units


def test_the_shorter_times_are_chosen_unit_by_unit() -> None:
    """Only times are minimums; bytes and all other fields are those of the newer measurement."""
    newer, older = answer(2, 2.0), answer(2, 3.0)
    mixed = replace(older, units=(replace(older.units[0], forward_s=(1.0,) * 4), older.units[1]))
    best = minimum_times(newer, mixed)
    assert [unit.forward_s[0] for unit in best.units] == [1.0, 4.0]
    assert [unit.backward_s for unit in best.units] == [unit.backward_s for unit in newer.units]
    assert best.profiling_s == newer.profiling_s


def test_a_run_that_measures_anew_replaces_what_was_kept(runs: Runs) -> None:
    """A run that measures anew replaces a cached measurement even if that was shorter."""
    runs.run("run-1", {"ann": 1.0})
    assert runs.run("run-2", {"ann": 5.0}, anew=True)[1] == ["ann"]
    made, asked = runs.run("run-3", {"ann": 9.0})
    assert asked == [] and made["ann"].units[0].forward_s[0] == 5.0
    assert runs.notes == ["ann: times of run-2 reused (same device, model, trainable set and batch sizes)"]


def test_what_was_measured_before_a_failure_is_kept(runs: Runs) -> None:
    """After a failure the next run measures only the device that failed."""

    class Late(ScriptedJob):
        """A job that fails after the other measurement was stored."""

        def lines(self) -> Iterator[str]:
            """Its output."""
            until(lambda: any(runs.kept.glob("*.json")))
            yield from ScriptedJob.lines(self)

    def fails(task: ProfilingTask) -> ProfilingTask:
        good = ScriptedJob([costs(len(runs.graph.units), 1.0)], 0)
        return replace(
            task, sites=LocalSites(Scripted({"ann": good, "bob": Late([{"event": "error", "message": "no"}], 75)}))
        )

    with pytest.raises(TryAgain, match="device bob"):
        runs.run("run-1", {"ann": 1.0, "bob": 1.0}, fails)
    assert runs.run("run-2", {"ann": 9.0, "bob": 1.0})[1] == ["bob"]


def test_a_folder_that_takes_nothing_spoils_no_run(runs: Runs) -> None:
    """An unwritable cache folder gives a note, and the measurement is used."""
    (runs.kept).write_text("a file where the folder should be")
    assert runs.run("run-1", {"ann": 1.0})[1] == ["ann"]
    assert runs.notes[-1].startswith("ann: its times cannot be cached for later runs (")


def test_writers_at_once_leave_one_whole_entry(tmp_path: Path) -> None:
    """The last of several writers wins, and readers never see a partial entry."""
    together = Barrier(8)
    seen: list[str] = []

    def write(number: int) -> None:
        own = MeasurementCache(tmp_path, f"run-{number}")
        together.wait()
        for _ in range(20):
            own.store(KEY, answer(3, float(number + 1)))
            found = own.load(KEY)
            assert found is not None and found.answer == answer(3, float(found.run[4:]) + 1)
            seen.append(found.run)

    threads = [Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 160, "a writer failed"
    assert [path.name for path in tmp_path.iterdir()] == [f"{KEY}.json"]


def answer(units: int, pace: float) -> DeviceMeasurement:
    """The measurement of a device of that pace."""
    return parse_measurement(costs(units, pace), "test")
