"""What units keep and need is counted while operations run: hand-made tensors, and units of a small model."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

from fleetune.models.meta_run import META, META_SAMPLES, empty_input
from fleetune.models.segment import SegmentRunner
from fleetune.models.skeleton import skeleton
from fleetune.models.source import configuration
from fleetune.profiling.live_bytes import LiveBytes
from fleetune.profiling.unit_bytes import UnitBytes, unit_bytes
from tests.support.models.instances import recorded
from tests.support.training.model_families import BY_NAME

KB = 1024
"""256 elements of float32."""


def ones() -> torch.Tensor:
    """A tensor of 1 KB."""
    return torch.ones(256)


def test_the_peak_is_of_tensors_that_live_at_once() -> None:
    """Three results, of which two are let go before the next: at most two live at once, and one is left."""
    given = ones()
    live = LiveBytes([given])
    with live:
        value = given + 1
        value = value * 2
        value = value - 3
    assert (live.peak_bytes, live.bytes) == (2 * KB, KB)
    del value
    assert (live.peak_bytes, live.bytes) == (2 * KB, 0)


def test_views_and_known_tensors_take_no_memory() -> None:
    """A view shares its tensor's storage, and what is changed in place was there before."""
    given = ones()
    with LiveBytes([given]) as live:
        given.add_(1).view(16, 16).t()
    assert live.peak_bytes == 0


def test_what_is_held_before_counts_until_it_is_let_go() -> None:
    """Its memory may be used for what comes: 1 KB is held, let go, and 1 KB made."""
    held = ones()
    live = LiveBytes([], [held.untyped_storage()])
    assert live.bytes == KB
    del held
    with live:
        made = torch.zeros(256)
    assert (live.peak_bytes, live.bytes) == (KB, made.untyped_storage().nbytes())


class Counted(nn.Module):
    """Stands in for a segment of one unit: y = (x w) ** 2, where x is [samples, 16] and w [16, 64]."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(16, 64))
        self.input_values, self.buffers, self.units = (0,), {}, ("u",)  # type: ignore[assignment]

    @property
    def parameters(self) -> dict[str, nn.Parameter]:  # type: ignore[override]
        """Its weight."""
        return {"w": self.w}

    def read_weights(self) -> dict[str, nn.Parameter]:
        """The same."""
        return self.parameters

    def run(self, values: dict[int, torch.Tensor], samples: int) -> dict[int, torch.Tensor]:
        """One forward."""
        return {1: (values[0] @ self.w) ** 2}


class Values:
    """Stands in for a graph whose input 0 has a gradient."""

    def value(self, number: int) -> "Values":
        """Of that value."""
        return self

    gradient = True


def test_a_unit_drawn_by_hand() -> None:
    """Of 4 samples x has 256 bytes, x w and y 1 KB each, w and its gradient 4 KB.

    Forward: kept are x, x w (for the square) and y, nothing more is needed. Backward: beside these the gradient of y
    (1 KB), then 2 x w (1 KB, let go), the gradient of x w (1 KB), and, as this was the last use of x w's own, the
    gradient of w (4 KB) before it is added to the one that is there, and that of x.
    """
    (found,) = unit_bytes(Values(), [Counted()], {0: torch.ones(4, 16)}, 4)  # type: ignore[arg-type, list-item]
    assert found.kept == 256 + 2 * KB
    assert 4 * KB <= found.workspace <= 8 * KB
    assert found.flops == 2 * 4 * 16 * 64


class Head(Counted):
    """Stands in for a frozen head: y = x w, where x is [samples, 16] and y has 1024 classes."""

    graph = SimpleNamespace(output=1)

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(16, 1024), requires_grad=False)

    def run(self, values: dict[int, torch.Tensor], samples: int) -> dict[int, torch.Tensor]:
        """One forward."""
        return {1: values[0] @ self.w}


def test_the_loss_is_a_part_of_the_last_unit() -> None:
    """Bug: the loss of a language model was not counted: 150 MB of 960 with the vocabulary of GPT-2 and two samples.

    Of 4 samples x has 256 bytes and y 16 KB. The loss keeps the logarithm of y's softmax in y's place. Its backward
    makes the gradient of that, and then y's.
    """

    def loss(samples: int, output: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(output, torch.zeros(samples, dtype=torch.int64))

    given = {0: torch.ones(4, 16)}
    (alone,) = unit_bytes(Values(), [Head()], given, 4)  # type: ignore[arg-type, list-item]
    (found,) = unit_bytes(Values(), [Head()], given, 4, loss)  # type: ignore[arg-type, list-item]
    small = 256 + KB  # x and its gradient, labels, and the loss
    assert 16 * KB <= alone.kept <= 16 * KB + small and 16 * KB <= alone.workspace <= 16 * KB + small
    assert 16 * KB <= found.kept <= 16 * KB + small and 32 * KB <= found.workspace <= 32 * KB + small


def counted(samples: int, folder: Path) -> dict[str, UnitBytes]:
    """Unit of a small BERT -> its bytes, on tensors without data."""
    ready = recorded(BY_NAME["bert"], folder)
    module = skeleton(configuration(ready.request, ready.labels), ready.request)
    segments = [SegmentRunner(ready.graph, (unit.name,), module, META) for unit in ready.graph.units]
    given = {number: empty_input(ready.graph, number, samples) for number in ready.graph.inputs.values()}
    names = [unit.name for unit in ready.graph.units]
    return dict(zip(names, unit_bytes(ready.graph, segments, given, samples), strict=True))


def test_an_embedding_needs_its_gradient_twice(tmp_path: Path) -> None:
    """A micro-batch's gradient of the whole table is made before it is added to that of others, however few samples
    there are; a block needs the more the more samples it runs."""
    few, many = (counted(samples, tmp_path) for samples in (META_SAMPLES, 2 * META_SAMPLES))
    ready = recorded(BY_NAME["bert"], tmp_path)
    module = skeleton(configuration(ready.request, ready.labels), ready.request)
    table = dict(module.named_parameters())["bert.embeddings.word_embeddings.weight"]
    first, block = list(few)[0], next(name for name in few if "layer.0" in name)
    for found in (few, many):
        assert found[first].workspace >= table.numel() * table.element_size()
    assert many[block].workspace > few[block].workspace > 0
    assert many[block].kept == pytest.approx(2 * few[block].kept, rel=0.1)
