"""The forecast's bytes of every codec are those that two devices send."""

from dataclasses import replace
from pathlib import Path

import pytest

from fleetune.clock import Clock
from fleetune.contracts.link_codecs import SPARSE
from fleetune.contracts.plan import LinkUse
from fleetune.contracts.training_request import TrainingRequest
from fleetune.models.skeleton import saved_configuration, skeleton
from fleetune.profiling.profile import coded_element_bytes, tied_bytes, unit_sizes, with_coded_values
from fleetune.training.coordinator import train
from tests.support.training.model_families import BY_NAME, data_request, model_request
from tests.support.training.runs import MICRO_BATCH, MICRO_BATCHES, plan, prepared, training_task

TRAINING = TrainingRequest(rounds=1, batch_samples=MICRO_BATCH * MICRO_BATCHES, micro_batch_samples=MICRO_BATCH)
PAIRS = [("fp16", "int8"), ("int4", "int8-hadamard"), ("top-k", "forward-mask"), ("bf16", "int4-hadamard")]
"""Codecs of the cuts of a chain, forward and back."""


@pytest.mark.parametrize(
    ("name", "precision", "pairs"),
    [("bert", "float32", PAIRS), ("gpt2", "float64", [("int8", "dense")])],
    ids=["all codecs", "float64"],
)
def test_bytes_are_forecast_as_they_are_sent(
    name: str, precision: str, pairs: list[tuple[str, str]], tmp_path: Path
) -> None:
    """Hidden states and gradients are coded, masks and positions are not, in either direction and precision; gradients
    of a weight that segments share (GPT-2) cross as they are.
    """
    family = BY_NAME[name]
    ready = prepared(model_request(family, dropout=True, precision=precision), data_request(family, tmp_path), tmp_path)
    module = skeleton(saved_configuration(ready.folders.model / "model"), ready.model)
    count = len(ready.units)
    sizes = unit_sizes(ready.graph, module, [1] * count, [1] * count, MICRO_BATCH)
    uses = [
        LinkUse(source=f"d{a}", target=f"d{b}", codec=codec, ratio=5.0 if codec in SPARSE else 1.0)
        for k, pair in enumerate(pairs)
        for codec, (a, b) in zip(pair, ((k, k + 1), (k + 1, k)), strict=True)
    ]
    made = plan(ready.units, list(range(1, len(pairs) + 1)), [[MICRO_BATCH]] * (len(pairs) + 1))
    made = replace(made, links=tuple(uses))
    task = training_task(ready, made, TRAINING, tmp_path)
    profile = replace(
        task.profile,
        units=with_coded_values(ready.graph, sizes),
        element_bytes=coded_element_bytes(ready.graph),
        tied_bytes=tied_bytes(ready.graph, module),
    )
    clock = Clock(task.fleet, profile)
    expected = {(row.device, row.action): row.bytes for row in clock.forecast(made).rows if row.is_transfer}
    dense = {(r.device, r.action): r.bytes for r in clock.forecast(replace(made, links=())).rows if r.is_transfer}
    measured = train(task).timeline
    assert {(row.device, row.action): row.bytes for row in measured if row.is_transfer} == expected
    codecs = {f"{use.source}>{use.target}": use.codec for use in uses}
    passes = {key: size for key, size in expected.items() if "R" not in key[1]}
    assert all((size < dense[key]) is (codecs[key[0]] != "dense") for key, size in passes.items())
    assert (len(passes) < len(expected)) is (name == "gpt2")
