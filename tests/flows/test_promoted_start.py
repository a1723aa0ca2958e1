"""Runs that started from a promoted model, after the folder of their store was moved."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fleetune.contracts.run_config import Lora, RunConfig
from fleetune.errors import Refused
from fleetune.store import RunRecord, Store
from flows.cache_policy import CachePolicy
from flows.context import RunContext, StageSelection
from flows.form import RunRequest, config_of
from flows.hand_over.trained_run import trained_run
from flows.promoted_start import in_this_store, move_note
from flows.promotion import pin_start, same_as_last, start_of
from flows.reevaluation import EvaluationRequest, reevaluation
from flows.runner import Runner
from flows.tracking import StageEvent
from stages.catalog import EVALUATE, PREPARE
from tests.support.flows.nights import Nights, config


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    """An empty store."""
    return Nights(tmp_path)


def second_night(nights: Nights) -> RunRecord:
    """The run that started from what the first one promoted; with every input of `evaluate`."""
    nights.decided(nights.run(config(), 2.0, 1.0))
    second = nights.run(pin_start(nights.store, config()), 1.0, 1.1)
    others = {kind: nights.put(kind, x=kind) for kind in EVALUATE.inputs if kind not in second.outputs}
    made = {**second.stages[0].outputs, "model": others.pop("model")}
    stage = replace(second.stages[0], inputs=others, outputs=made)
    second = replace(second, stages=(stage, *second.stages[1:]))
    nights.store.runs.save(second)
    nights.decided(second)
    return second


def moved(nights: Nights) -> Store:
    """The store in another folder; it is no longer where it was."""
    shutil.move(nights.store.local, nights.folder / "elsewhere" / "store")
    return Store(nights.folder / "elsewhere" / "store")


def key(store: Store, start: RunConfig, rerun: str) -> str:
    """The key of `prepare` in a run of a config."""
    context = RunContext(store=store, contents=dict.fromkeys(("data", "model weights"), lambda _: "c"))
    policy = CachePolicy(context, start, StageSelection(until="prepare", rerun=rerun))
    return policy.decide(PREPARE, {}).key


def test_a_moved_store_repeats_its_runs(nights: Nights) -> None:
    """A run that started from a promoted model starts from the same one after its store was moved: when it is run
    again, evaluated again and used, under the same stage keys, and a note says where the model was read before."""
    second = second_night(nights)
    before = key(nights.store, second.config, second.id)
    store = moved(nights)
    source = str(store.folder("checkpoint", start_of(store, second.config)) / "model")
    again, past = config_of(RunRequest(base=second.id), store)
    assert (again.model.source, past) == (source, second.id)
    assert reevaluation(EvaluationRequest(run=second.id), store).config.model.source == source
    changed = EvaluationRequest(run=second.id, changes=("data.test_samples=7",))
    assert reevaluation(changed, store).config.model.source == source
    assert trained_run(store, second.id).run.config.model.source == source
    assert key(store, again, second.id) == before
    planned = replace(second, id="planned", config=pin_start(store, config()))
    assert same_as_last(store, planned) == second.id
    heard: list[StageEvent] = []
    contents = dict.fromkeys(("data", "model weights"), lambda _: "c")
    context = RunContext(store=store, contents=contents, listen=heard.append)
    with Runner(context, again, StageSelection(rerun=second.id)):
        pass
    assert [one.text for one in heard if one.kind == "note"] == [move_note(second.config, again)]
    assert second.config.model.source in heard[0].text and source in heard[0].text


def test_a_start_that_is_there_or_nowhere_is_left(nights: Nights) -> None:
    """A start keeps its path while the folder is there, and where no store has it, so that the error names it."""
    second = second_night(nights)
    assert in_this_store(nights.store, second.config) == second.config
    assert move_note(second.config, second.config) == ""
    store = moved(nights)
    store.storage.remove(f"artifacts/checkpoint/{start_of(store, second.config)}")
    assert in_this_store(store, second.config) == second.config
    with pytest.raises(Refused, match=r"model\.source.* does not exist"):
        config_of(RunRequest(base=second.id), store)


def test_adapters_move_too(nights: Nights) -> None:
    """An adapter that training started from is found in the moved store; a folder of the user's own is not touched."""
    adapter = nights.put("checkpoint", adapter__weights="a")
    folder = nights.store.folder("checkpoint", adapter) / "adapter"
    mine = "/gone/artifacts/mine/model"
    model = replace(config().model, source=mine, config=None, lora=Lora(targets=("query",), start=str(folder)))
    found = in_this_store(moved(nights), replace(config(), model=model)).model
    assert found.source == mine and found.lora is not None
    assert found.lora.start == str(
        nights.folder / "elsewhere" / "store" / "artifacts" / "checkpoint" / adapter / "adapter"
    )


def test_a_start_that_was_damaged_is_refused(nights: Nights) -> None:
    """A run that is repeated, or names the folder of a store itself, would train on from other weights without a word
    but "model weights changed"."""
    second = second_night(nights)
    assert second.config.model.source is not None
    file = next(path for path in sorted(Path(second.config.model.source).rglob("*")) if path.is_file())
    context = RunContext(store=nights.store, contents=dict.fromkeys(("data", "model weights"), lambda _: "c"))
    rerun = StageSelection(until="prepare", rerun=second.id)
    Runner(context, second.config, rerun)
    file.write_bytes(file.read_bytes() + b" ")
    with pytest.raises(Refused, match="file of the checkpoint artifact is corrupt"):
        Runner(context, second.config, rerun)
