"""The benchmark of link codecs: all figures are there, and bytes are as stated."""

import torch

from benchmarks.codecs.activations import recorded_activation
from benchmarks.codecs.errors import errors
from benchmarks.codecs.speed import CODED, speeds


def test_every_codec_has_its_figures() -> None:
    """Bytes as stated, positive seconds, and less than a twentieth of the time saved on a slow link."""
    found = {figure.name: figure for figure in speeds(rounds=1)}
    for codec in CODED:
        assert found[f"{codec}_unstated_bytes"].value == 0.0
        assert found[f"{codec}_bytes"].value < 0.51  # type: ignore[operator]
        assert found[f"{codec}_encode"].value > 0 and found[f"{codec}_decode"].value > 0  # type: ignore[operator]
        assert found[f"{codec}_cost_at_8_mbit"].ok


def test_a_rotation_halves_the_error_of_a_recorded_activation() -> None:
    """The activation of a pretrained model has outliers, which a rotation spreads; Gaussian data has none."""
    activation = recorded_activation(samples=4)
    assert activation.shape == (4, 64, 384) and activation.dtype == torch.float32
    found = {figure.name: figure.value or 0.0 for figure in errors(activation)}
    assert found["activation_peak"] > 10
    for codec in ("int8", "int4"):
        assert found[f"{codec}-hadamard_activation_error"] < 0.55 * found[f"{codec}_activation_error"]
        assert 0.9 < found[f"{codec}-hadamard_gaussian_error"] / found[f"{codec}_gaussian_error"] < 1.1
