"""The form of a run: what its values make of a run file or of a past run."""

import dataclasses
from pathlib import Path

import pytest

from fleetune.errors import Refused
from fleetune.store import RunRecord, Store
from flows import configs
from flows.form import RunRequest, config_of, selection_of

DEMO = Path("configs/runs/demo.yaml")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store."""
    return Store(tmp_path / "store")


def past_run(store: Store, rounds: int) -> str:
    """A past run of the demo, with other rounds than today's run file; its id."""
    config = configs.load(DEMO, [f"training.rounds={rounds}"])
    record = RunRecord(
        id="demo-20260102-120000-ab12", config=config, seed=1, code_version="1", commit="", started="2026", stages=()
    )
    store.runs.save(dataclasses.replace(record, state="done"))
    return record.id


def test_neutral_values_change_nothing(store: Store) -> None:
    """A form that was only given a base is the run file as it is."""
    config, past = config_of(RunRequest(base="demo"), store)
    assert config == configs.load(DEMO) and past == ""
    selection = selection_of(RunRequest(base="demo"), past)
    assert selection.from_stage is selection.only is selection.until is selection.rerun is None and not selection.force


def test_values_replace_those_of_the_run_file(store: Store) -> None:
    """A name replaces its section, a number its setting, and a change wins over both."""
    given = RunRequest(base="demo", strategy="single", rounds=7, learning_rate=0.25, changes=("training.rounds=9",))
    config, _ = config_of(given, store)
    assert (config.strategy.name, config.training.rounds, config.training.learning_rate) == ("single", 9, 0.25)


def test_a_past_run_is_read_as_it_was(store: Store) -> None:
    """A copy of a run reads the config of its record: today's run file says another number of rounds."""
    past = past_run(store, rounds=11)
    config, found = config_of(RunRequest(base=past, strategy="single"), store)
    assert (config.training.rounds, config.strategy.name, found) == (11, "single", past)
    assert selection_of(RunRequest(base=past, start_from="train"), past).from_stage == "train"
    assert config_of(RunRequest(base="demo"), store)[0].training.rounds != 11, "the name of a run file is the run file"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (RunRequest(base="nothing"), ("base", "nothing", "demo", "past run")),
        (RunRequest(base=" "), ("base", "empty", "demo")),
        (RunRequest(base="demo", strategy="astroid"), ("strategy", "astroid", "asteroid")),
        (RunRequest(base="demo", changes=("training.rouns=3",)), ("training.rouns", "rounds")),
        (RunRequest(base="demo", changes=("strategy.name=foo",)), ("strategy.name", "foo", "asteroid")),
    ],
)
def test_a_refusal_says_what_is_allowed(store: Store, given: RunRequest, said: tuple[str, ...]) -> None:
    """What cannot be run is refused by name, with the allowed values, whether the base is a file or a past run."""
    past = past_run(store, rounds=11)
    bases = (given.base, past) if given.base == "demo" else (given.base,)
    for base in bases:
        with pytest.raises(Refused) as refused:
            config_of(dataclasses.replace(given, base=base), store)
        assert all(word in str(refused.value) for word in said), str(refused.value)
