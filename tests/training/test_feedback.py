"""Error feedback on links: the same training as in one process, and residuals that are part of the committed state."""

from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from fleetune.clock import Clock
from fleetune.clock.coding import Coding, feedback_bytes
from fleetune.contracts import json_io
from fleetune.contracts.plan import LinkUse, Plan
from fleetune.contracts.profile import CodecTime
from fleetune.contracts.training_request import TrainingRequest
from fleetune.data.prepared_data import PreparedData
from fleetune.drawing.text import link_text
from fleetune.errors import Refused, TryAgain
from fleetune.planning import solve
from fleetune.training.checkpoints import FileDigest, StoredCheckpoint, mark_complete, savers_of, write_residuals
from tests.support.clock import fleets
from tests.support.codecs.single_process import Residuals, across_cut
from tests.support.planning.instances import small
from tests.support.training.control_comparison import difference, whole_model
from tests.support.training.control_runs import WHOLE
from tests.support.training.ends import assert_same_bits
from tests.support.training.listeners import StopAfter
from tests.support.training.model_families import BY_NAME, data_request, model_request
from tests.support.training.runs import MICRO_BATCHES, final_state, plan, prepared, run_plan
from tests.support.training.unsplit_training import Control, Order, train_unsplit

TRAINING = TrainingRequest(
    rounds=6, batch_samples=24, micro_batch_samples=8, learning_rate=1e-3, checkpoint_every_rounds=99
)
THERE = LinkUse(source="d0", target="d1", codec="int4", feedback=True)
BACK = LinkUse(source="d1", target="d0", codec="top-k", ratio=8.0, feedback=True)


def test_feedback_equals_one_process_and_goes_on_after_a_stop_in_every_bit(tmp_path: Path) -> None:
    """Two devices train as one process that adds at the cut what was lost, and an end after round 3 changes nothing."""
    ready = prepared(model_request(BY_NAME["bert"], dropout=True), data_request(BY_NAME["bert"], tmp_path), tmp_path)
    made = replace(plan(ready.units, [2], [[8], [8]]), links=(THERE, BACK))
    metrics = run_plan(ready, made, TRAINING, tmp_path / "whole")
    run = Control([r.loss for r in metrics.rounds], final_state(tmp_path / "whole"))

    def control(residuals: Residuals | None) -> Control:
        number = count()

        def crossed(module: Any, given: Any, output: Any) -> Any:
            first = output[0] if isinstance(output, tuple) else output
            coded = across_cut(first, THERE, BACK, residuals, next(number) % MICRO_BATCHES)
            return (coded, *output[1:]) if isinstance(output, tuple) else coded

        whole = whole_model(ready)
        whole.get_submodule(ready.units[1]).register_forward_hook(crossed)
        return train_unsplit(whole, PreparedData(ready.folders.data), TRAINING, ready.seed, ready.units, Order(WHOLE))

    assert difference(ready, run, control({})).bitwise
    assert not difference(ready, run, control(None)).bitwise
    stop = StopAfter(3)
    with pytest.raises(TryAgain, match="^ended after round 3 of 6, with a checkpoint of it"):
        run_plan(ready, made, TRAINING, tmp_path / "cut", stop=stop, progress=stop.listen)
    assert run_plan(ready, made, TRAINING, tmp_path / "cut").resumed_from_round == 3
    assert_same_bits(tmp_path / "whole", tmp_path / "cut")


def test_every_sender_with_feedback_writes_what_it_has_lost(tmp_path: Path) -> None:
    """A checkpoint has a file for each of them; a device without one, as after a change of plan, starts anew."""
    made = replace(fleets.PLAN, links=(LinkUse(source="c", target="a", codec="int8", feedback=True),))
    assert savers_of(fleets.PLAN) == ("a", "b") and savers_of(made) == ("a", "b", "c")
    lost = {"c>a|main/1B0|7": torch.randn(3, 5)}
    folder = tmp_path / "checkpoints" / "round-000002"
    file, digest = write_residuals(folder, "c", lost)
    mark_complete(tmp_path, 2, {file: digest}, "", ())
    assert {key: t.tolist() for key, t in StoredCheckpoint.verified(folder).residuals("c").items()} == {
        k: t.tolist() for k, t in lost.items()
    }
    assert StoredCheckpoint.verified(folder).residuals("a") == {}
    (folder / file).write_bytes((folder / file).read_bytes()[:-1])
    assert FileDigest.of(folder / file) != digest
    with pytest.raises(TryAgain, match="is damaged"):
        StoredCheckpoint.verified(folder).residuals("c")


def test_residuals_take_memory_and_the_sender_decodes_too() -> None:
    """c returns 1 sample of 200 bytes in each of 3 micro-batches; what it lost it knows only once it has decoded. It
    holds what was lost last, until the commit, and what this round loses."""
    fed = LinkUse(source="c", target="a", codec="int8", feedback=True)
    made = replace(fleets.PLAN, links=(fed,))
    clock = Clock(fleets.FLEET, fleets.PROFILE)
    assert feedback_bytes(made, "c", fleets.PROFILE) == 3 * 200 and feedback_bytes(made, "a", fleets.PROFILE) == 0
    assert clock.memory_bytes(made, "c") == clock.memory_bytes(fleets.PLAN, "c") + 2 * 600
    time = CodecTime(codec="int8", encode_s_per_byte=3.0, decode_s_per_byte=2.0)
    profile = replace(fleets.PROFILE, times=tuple(replace(t, codecs=(time,)) for t in fleets.PROFILE.times))
    unit = fleets.UNITS[1]
    assert Coding(profile).seconds(unit, "B", 1, fed) == (200 * 5.0, 200 * 2.0)
    assert Coding(profile).seconds(unit, "B", 1, replace(fed, feedback=False)) == (200 * 3.0, 200 * 2.0)


def test_indices_of_a_mask_take_memory_at_both_ends() -> None:
    """a sends 2 of its 4 samples to c, 1 in 10 of their 50 elements each, and both keep the places, 8 bytes each, from
    the forward to the gradient: of 3 micro-batches on a, of 1 on c. Top-k with indices of its own keeps none."""
    group = fleets.plan(("u0 u1", {"a": 4}, 3), ("u2 u3", {"b": 2, "c": 2}, 1))
    sent = LinkUse(source="a", target="c", codec="top-k", ratio=10.0)
    back = LinkUse(source="c", target="a", codec="forward-mask", ratio=10.0)
    clock = Clock(fleets.FLEET, fleets.PROFILE)

    def more(*uses: LinkUse) -> dict[str, int]:
        made = replace(group, links=uses)
        return {name: clock.memory_bytes(made, name) - clock.memory_bytes(group, name) for name in "abc"}

    assert more(sent, back) == {"a": 3 * 2 * 5 * 8, "b": 0, "c": 2 * 5 * 8}
    assert more(sent) == more(sent, replace(back, codec="top-k")) == {"a": 0, "b": 0, "c": 0}


def test_feedback_is_said_and_needs_a_codec() -> None:
    """Plans without it have the text that they always had."""
    assert link_text(THERE) == "int4 with feedback" and link_text(BACK) == "top-k 1/8 with feedback"
    assert "feedback" not in json_io.dump(replace(THERE, feedback=False))
    with pytest.raises(Refused, match="link a>b: feedback needs a codec that loses something"):
        LinkUse(source="a", target="b", feedback=True)


@pytest.mark.parametrize("options", [{"compression": "int8"}, {"compression_ratio": 50.0}, {"compression": "auto"}])
def test_strategies_turn_it_on(options: dict[str, Any]) -> None:
    """With compression_feedback every link with a codec has it."""
    slow = replace(small(method="equal-modules", compression_feedback=True, **options), fleet=_slow())
    made: Plan = solve("fusionllm", slow).plan
    assert made.links and all(use.feedback for use in made.links)


def test_feedback_without_compression_is_refused() -> None:
    """The error says which option is missing."""
    with pytest.raises(Refused, match="compression_feedback needs compression or compression_ratio"):
        solve("asteroid", small(compression_feedback=True))


def _slow() -> Any:
    links = tuple(replace(link, bytes_per_s=1e4) for link in fleets.FLEET.links)
    return replace(fleets.FLEET, links=links)
