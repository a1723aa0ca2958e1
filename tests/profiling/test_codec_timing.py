"""Times of link codecs: measured on each device of a run that compresses links, and only then."""

import statistics
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fleetune.contracts import json_io
from fleetune.contracts.link_codecs import CODECS, DENSE, SPARSE
from fleetune.contracts.profile import DeviceTimes
from fleetune.contracts.run_config import RunConfig
from fleetune.profiling.cache import MeasurementCache
from fleetune.profiling.codec_timing import (
    LARGE_BYTES,
    SMALL_BYTES,
    SPARSE_RATIOS,
    codec_times,
    feedback_s_per_byte,
    line_through,
)
from fleetune.profiling.messages import DeviceMeasurement
from fleetune.profiling.profile import profile
from fleetune.profiling.simulated import CODEC_FLOPS_PER_BYTE
from fleetune.profiling.timing import TimingSettings
from tests.support.profiling.instances import Scripted, ScriptedJob, costs, prepared, profiling_task

TIMED = [(codec, ratio) for codec in CODECS if codec != DENSE for ratio in (SPARSE_RATIOS if codec in SPARSE else (1,))]
RUN = {
    "name": "some",
    "model": {"task": "causal-lm", "source": "some"},
    "data": {"source": "digits"},
    "training": {"rounds": 1},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_codec_is_timed_at_both_ends(dtype: torch.dtype) -> None:
    """Encoding and decoding take time in each, sparse ones less where they keep less."""
    found = codec_times(torch.device("cpu"), TimingSettings(batch_sizes=(1,), passes=3), dtype)
    assert [(time.codec, time.ratio) for time in found] == TIMED
    assert all(0 < time.encode_s_per_byte < 1e-6 and 0 < time.decode_s_per_byte < 1e-6 for time in found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_feedback_takes_beside_a_codec_is_timed(dtype: torch.dtype) -> None:
    """Adding what was lost and keeping what is lost: more a byte in half precision, whose losses are in float32."""
    settings = TimingSettings(batch_sizes=(1,), passes=9)
    assert 0 < feedback_s_per_byte(torch.device("cpu"), settings, dtype) < 1e-7


def test_small_tensors_cost_more_a_byte() -> None:
    """A line through two sizes has a part for each tensor, and never a negative one: noise that would make it so leaves
    the time of the larger tensor in proportion to its bytes."""
    tensor_s, s_per_byte = line_through(3.0 + SMALL_BYTES, 3.0 + LARGE_BYTES)
    assert (tensor_s, s_per_byte) == pytest.approx((3.0, 1.0))
    for small_s in (1.0, 2.0 * LARGE_BYTES):
        assert line_through(small_s, LARGE_BYTES) == (0.0, 1.0)
    found = codec_times(torch.device("cpu"), TimingSettings(batch_sizes=(1,), passes=3, cores=1.0), torch.float32)
    assert sum(time.encode_s for time in found) > 0


def test_an_emulated_device_codes_at_its_own_pace() -> None:
    """At a tenth of a core a codec takes ten times its processor time, in most pairs of measurements."""

    def spent(cores: float) -> float:
        settings = TimingSettings(batch_sizes=(1,), passes=9, cores=cores)
        times = codec_times(torch.device("cpu"), settings, torch.float32)
        return sum(time.encode_s_per_byte for time in times)

    assert 3 < statistics.median(spent(0.1) / spent(1.0) for _ in range(3)) < 30


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, False), ({"compression_ratio": 100}, True), ({"compression": "auto"}, True), ({"compression": None}, False)],
)
def test_a_strategy_that_compresses_asks_for_times_of_codecs(options: dict[str, object], expected: bool) -> None:
    """The run's config says so, and one without compression has the same text, so the same keys, as ever."""
    config = json_io.load(RunConfig, {**RUN, "strategy": {"name": "fusionllm", "options": options}}, "run")
    assert config.profile.codecs is expected
    assert json_io.dump(config).get("profile") == ({"scores": False, "codecs": True} if expected else None)


def scripted(units: int, coded: bool) -> Scripted:
    """A launcher whose device ann answers with its costs, and with times of codecs if asked."""
    times = [{"codec": "int8", "ratio": 1.0, "encode_s_per_byte": 2.0, "decode_s_per_byte": 1.0}]
    return Scripted({"ann": ScriptedJob([costs(units, 1.0) | ({"codecs": times} if coded else {})], 0)})


def test_the_profile_has_times_of_codecs_and_what_they_may_change(tmp_path: Path) -> None:
    """BERT's hidden states are coded at a cut, its mask is not; without compression a profile has no word of it."""
    graph, _ = prepared(tmp_path)
    launcher = scripted(len(graph.units), coded=True)
    made = profile(replace(profiling_task(tmp_path, launcher, ("ann",)), codecs=True))
    assert launcher.given["ann"].codecs
    assert [(time.codec, time.encode_s_per_byte) for time in made.times[0].codecs] == [("int8", 2.0)]
    first, last = made.units[0], made.units[-1]
    assert first.coded_elements is not None and len(first.coded_elements) == 1
    assert 4 * first.coded_elements[0] == first.gradient_bytes < first.output_bytes
    assert last.coded_elements == () and made.element_bytes == 4
    plain = profile(profiling_task(tmp_path, scripted(len(graph.units), coded=False), ("ann",)))
    text = json_io.text(plain)
    assert "codec" not in text and "coded" not in text and "element_bytes" not in text
    assert plain.units == tuple(replace(unit, coded_elements=None) for unit in made.units)


def test_measurements_with_codecs_serve_runs_without_and_not_the_other_way(tmp_path: Path) -> None:
    """One cache entry for both: a run that compresses measures anew, the next one of either kind nothing."""
    graph, _ = prepared(tmp_path)
    said = []
    for number, coded in enumerate((False, True, True, False)):
        launcher = scripted(len(graph.units), coded)
        task = replace(profiling_task(tmp_path, launcher, ("ann",)), codecs=coded)
        made = profile(replace(task, cache=MeasurementCache(tmp_path / "kept", f"run {number}")))
        said.append((bool(launcher.given), bool(made.times[0].codecs)))
    assert said == [(True, False), (True, True), (False, True), (False, False)]


def test_simulated_devices_state_codecs_by_their_speed() -> None:
    """All codecs have a stated cost, and none is free."""
    assert set(CODEC_FLOPS_PER_BYTE) == set(CODECS) - {DENSE}
    assert all(min(cost) > 0 for cost in CODEC_FLOPS_PER_BYTE.values())


def test_messages_without_codecs_read_as_before() -> None:
    """An answer of a device that was not asked has no word of codecs."""
    answer = DeviceMeasurement(runtime_bytes=1, profiling_s=1.0, units=())
    assert "codecs" not in json_io.dump(answer)
    times = DeviceTimes(device="a", runtime_bytes=1, forward_s=(), backward_s=())
    assert "codecs" not in json_io.dump(times)
