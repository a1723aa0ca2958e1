"""Promotion: what a run starts from, and when its model is the next one to start from."""

import dataclasses
import datetime
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleetune.contracts.run_config import RunConfig
from fleetune.errors import Refused, TryAgain
from fleetune.store import PromotionDecision
from fleetune.wall_clock import utc_now
from flows.promotion import decide, pin_start, same_as_last, split_note, start_of
from tests.support.flows.nights import PLAIN, Nights, config


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    """An empty store."""
    return Nights(tmp_path)


def test_a_better_model_is_the_next_start(nights: Nights) -> None:
    """The first night starts from the config's model; what improved is the start of the next night, by its folder in
    the store, and what did not improve is not."""
    assert pin_start(nights.store, config()) == config()
    first = nights.decided(nights.run(config(), 2.0, 1.0))
    assert first.promoted and first.start == "" and first.number == 1
    second = pin_start(nights.store, config())
    assert second.model.source == str(nights.store.folder("checkpoint", first.checkpoint) / "model")
    assert second.model.config == {"num_hidden_layers": 2} and start_of(nights.store, second) == first.checkpoint
    worse = nights.decided(nights.run(second, 1.0, 1.1))
    assert not worse.promoted and worse.start == first.checkpoint
    assert pin_start(nights.store, config()) == second
    third = nights.decided(nights.run(second, 1.0, 0.9))
    assert third.promoted and third.origin == first.origin
    assert start_of(nights.store, pin_start(nights.store, config())) == third.checkpoint
    assert [one.run for one in nights.store.promotions.promoted()] == [third.run, first.run]
    assert [one.number for one in nights.store.promotions.history("nightly")] == [1, 2, 3]


def test_a_start_whose_test_rows_were_others_is_told(nights: Nights) -> None:
    """Bug: in the first night after this split by content, nobody said that the start had trained on its test rows. An
    evaluation on other data, all of which are tested on, is not told."""
    first = nights.decided(nights.run(config(), 2.0, 1.0))
    by_content = config(data={**PLAIN["data"], "split_by_content": True})
    now = pin_start(nights.store, by_content)
    assert split_note(nights.store, now).startswith(f"{first.run}, whose model is the start, held test rows out by how")
    elsewhere = dataclasses.replace(now, data=dataclasses.replace(now.data, validation=1.0))
    for as_before in (by_content, pin_start(nights.store, config()), elsewhere):
        assert split_note(nights.store, as_before) == ""
    nights.decided(nights.run(now, 1.0, 0.9))
    assert split_note(nights.store, pin_start(nights.store, by_content)) == ""


def test_equal_is_not_better(nights: Nights) -> None:
    """The same score promotes nothing, nor does a gain that is not above the least one."""
    assert not nights.decided(nights.run(config(), 1.0, 1.0)).promoted
    demanding = config(promote={"score": "loss", "least_gain": 0.5})
    assert not nights.decided(nights.run(demanding, 2.0, 1.5)).promoted
    assert nights.decided(nights.run(demanding, 2.0, 1.4)).promoted


def test_a_decision_says_what_was_scored(nights: Nights) -> None:
    """Bug: packed sequences were called samples, and samples by which the state was chosen test samples."""
    told: dict[str, Any] = {"sequences": True, "trained_on": 0, "chose": True}
    said = nights.decided(nights.run(config(), 2.0, 1.0, **told)).why
    assert said.endswith("after training, on 10 sequences not trained on, by which the result was chosen")


def test_a_run_is_decided_about_once(nights: Nights) -> None:
    """A run whose decision was written before the power failed has the same one after it."""
    run = nights.run(config(), 2.0, 1.0)
    assert nights.decided(run) == nights.decided(run)
    again = nights.decided(dataclasses.replace(run, id="nightly-again"))
    assert again.run == run.id, "a retry that ends with the same checkpoint"
    assert len(nights.store.promotions.history("nightly")) == 1


def test_two_that_end_at_once(nights: Nights) -> None:
    """Of two runs from the same start only one is promoted: the other one was not compared with it."""
    runs = [nights.run(config(), 2.0, 1.0), nights.run(config(), 2.0, 0.5)]
    found: list[PromotionDecision | None] = []
    wait = threading.Event().wait
    threads = [threading.Thread(target=lambda one=one: found.append(decide(nights.store, one, wait))) for one in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.promoted for one in found if one) == [False, True]
    loser = next(one for one in found if one and not one.promoted)
    assert "was promoted meanwhile" in loser.why


def test_another_model_starts_anew(nights: Nights) -> None:
    """A run file whose model was changed does not go on from checkpoints of the old one, and promotes its own."""
    nights.decided(nights.run(config(), 2.0, 1.0))
    other = config(model={"task": "sequence-classification", "config": {"model_type": "roberta"}})
    assert pin_start(nights.store, other) == other
    assert nights.decided(nights.run(other, 3.0, 2.0)).promoted
    assert start_of(nights.store, pin_start(nights.store, config())) != start_of(
        nights.store, pin_start(nights.store, other)
    )


def test_adapters_go_on_from_adapters(nights: Nights) -> None:
    """With LoRA the promoted adapter is the start, on the same base."""
    lora = {**PLAIN["model"], "lora": {"targets": ["query"]}}
    base = config(model=lora)
    record = nights.run(base, 2.0, 1.0)
    adapter = nights.put("checkpoint", adapter__weights="a")
    evaluated = dataclasses.replace(record.stages[1], outputs={**record.stages[1].outputs, "checkpoint": adapter})
    nights.decided(dataclasses.replace(record, stages=(record.stages[0], evaluated)))
    pinned = pin_start(nights.store, base)
    assert pinned.model.lora is not None and pinned.model.source is None
    assert pinned.model.lora.start == str(nights.store.folder("checkpoint", adapter) / "adapter")
    assert start_of(nights.store, pinned) == adapter


def test_a_damaged_start_is_refused(nights: Nights) -> None:
    """A promoted checkpoint whose bytes have changed, or which is gone, is not trained from, and the run is named."""
    first = nights.decided(nights.run(config(), 2.0, 1.0))
    weights = nights.store.folder("checkpoint", first.checkpoint) / "model" / "weights"
    weights.write_text("rotten")
    with pytest.raises(Refused, match=first.run):
        pin_start(nights.store, config())
    weights.unlink()
    with pytest.raises(Refused, match=first.run):
        pin_start(nights.store, config())


def test_a_torn_registry_is_refused(nights: Nights) -> None:
    """A decision that cannot be read is named, and nothing is trained from an older model in its place."""
    nights.decided(nights.run(config(), 2.0, 1.0))
    (nights.folder / "store" / "promotions" / "nightly" / "000001.json").write_text("{")
    with pytest.raises(Refused, match=r"promotions/nightly/000001\.json"):
        pin_start(nights.store, config())


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (lambda one: one, True),
        (lambda one: dataclasses.replace(one, schedule=None), True),
        (lambda one: dataclasses.replace(one, seed=5), False),
        (lambda one: dataclasses.replace(one, training=dataclasses.replace(one.training, rounds=9)), False),
    ],
)
def test_nothing_new(nights: Nights, change: Callable[[RunConfig], RunConfig], same: bool) -> None:
    """A run with the settings, start and data of the last one that was decided about has nothing to train on; a
    change of its times is no news, any other setting is."""
    scheduled = config(schedule={"every_s": 60})
    last = nights.run(scheduled, 2.0, 2.5)
    planned = dataclasses.replace(last, id="planned", config=change(scheduled))
    assert same_as_last(nights.store, planned) == "", "nothing was decided yet"
    nights.decided(last)
    assert same_as_last(nights.store, planned) == (last.id if same else "")
    fresh = dataclasses.replace(planned, stages=(dataclasses.replace(last.stages[0], key="k2"),))
    assert same_as_last(nights.store, fresh) == "", "other data"


def test_a_promotion_is_news(nights: Nights) -> None:
    """After a promotion the start has changed, so that the same data are worth another run."""
    last = nights.run(config(), 2.0, 1.0)
    nights.decided(last)
    planned = dataclasses.replace(last, id="planned", config=pin_start(nights.store, config()))
    assert same_as_last(nights.store, planned) == ""


def test_without_promote_nothing_happens(nights: Nights) -> None:
    """A config without the section starts where it says, and nothing is written about it."""
    plain = dataclasses.replace(config(), promote=None)
    record = nights.run(plain, 2.0, 1.0)
    assert decide(nights.store, record, lambda seconds: True) is None and nights.store.promotions.names() == []


def test_models_are_listed(nights: Nights) -> None:
    """`fleetune models` names the run, data, scores and folder of each promoted model, and of nothing else."""
    from typer.testing import CliRunner

    from flows.cli.app import app

    root = ["--root", nights.store.root]
    runner = CliRunner()
    assert "no promoted models" in runner.invoke(app, ["models", *root]).output
    good, bad = (nights.decided(nights.run(config(), 2.0, after)) for after in (1.0, 3.0))
    listed = json.loads(runner.invoke(app, ["models", "--json", *root]).output)["models"]
    assert [one["run"] for one in listed] == [good.run] and listed[0]["data"] == good.data
    assert (Path(listed[0]["model"]) / "weights").is_file() and listed[0]["scores"][0]["after"] == 1.0
    shown = runner.invoke(app, ["models", *root]).output
    assert good.run in shown and "loss 2 before and 1 after" in shown and bad.run not in shown


def test_nothing_is_removed_while_a_model_is_promoted(nights: Nights) -> None:
    """A removal that looked for promoted runs just before a promotion would take that run's model. So the two exclude
    each other, whichever comes first."""
    record = nights.run(config(), before=2.0, after=1.0)
    held: list[bool] = []

    def clock() -> datetime.datetime:
        held.append(nights.store.removal(lambda seconds: True).take())
        return utc_now()

    nights.store.clock = clock  # asked when the decision is written down
    with nights.store.removal(lambda seconds: True), pytest.raises(TryAgain, match="removal"):
        nights.decided(record)
    assert nights.decided(record).promoted and held == [False]
    assert nights.store.removal(lambda seconds: True).take(), "free again"


def test_a_removed_model_is_not_promoted(nights: Nights) -> None:
    """A model that was removed before the decision is refused by name, and nothing is written down."""
    record = nights.run(config(), before=2.0, after=1.0)
    nights.store.storage.remove(f"artifacts/checkpoint/{record.outputs['checkpoint']}")
    with pytest.raises(Refused, match=f"model of {record.id} was removed"):
        nights.decided(record)
    assert nights.store.promotions.history("nightly") == ()
