"""A recording that computes something else than its model is refused."""

import importlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from torch import nn

from fleetune.contracts.run_config import Lora
from fleetune.errors import Refused
from fleetune.models import graph as g
from fleetune.models.recorder import record_model
from fleetune.models.unit_graph import record_units
from fleetune.models.units import fold_into_units, leaf_modules
from fleetune.preparation.prepare import prepare
from fleetune.preparation.step_comparison import ModelAndRecording, Samples, compare_step, distances
from tests.support.models.instances import Recorded, batch, recorded
from tests.support.preparation.instances import preparation_task
from tests.support.profiling.instances import FAMILY, MODEL
from tests.support.training.model_families import BY_NAME, ENCODER, LANGUAGE, Family, data_request, model_request

LORA = Lora(r=2, dropout=0.2, targets="all-linear")


def samples(family: Family) -> Samples:
    """Six samples; texts are padded."""
    inputs = batch(family, 6)
    labels = inputs["input_ids"].clone() if family.task == LANGUAGE else torch.tensor([0, 1, 2, 2, 1, 0])
    return Samples(inputs=inputs, labels=labels, task=family.task, seed=5)


def changed(graph: g.Graph, number: int, **changes: Any) -> g.Graph:
    """The graph with one node replaced."""
    return replace(graph, nodes=tuple(replace(n, **changes) if n.id == number else n for n in graph.nodes))


def compare(ready: Recorded, graph: g.Graph, family: Family) -> None:
    """Compare a recording with its model."""
    compare_step(graph, ready.whole(), samples(family))


@pytest.mark.parametrize(
    "name, lora",
    [("bert", None), ("bert", LORA), ("gpt2", None), ("llama", LORA), ("vit", None), ("efficientnet", None)],
)
@pytest.mark.parametrize("granularity", ["block", "layer"])
def test_a_faithful_recording_passes(name: str, lora: Lora | None, granularity: str, tmp_path: Path) -> None:
    """For all three tasks, with dropout, tied weights, batch norms and adapters, all bits agree, and the model is
    unchanged afterwards."""
    family = BY_NAME[name]
    ready = recorded(family, tmp_path, granularity, lora=lora)
    model = ready.whole()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    pair = ModelAndRecording(ready.graph, model.train())
    given = samples(family)
    assert not any(distances(pair.step(given, recorded=True), pair.step(given)).values())
    compare_step(ready.graph, model, given)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("name", ["bert", "gpt2", "vit"])
def test_a_gradient_that_gets_lost_is_refused_by_name(name: str, tmp_path: Path) -> None:
    """Bug: a recording that lost the gradients of 38 of 44 tensors was trained without a word. The refusal names the
    worst tensor, its error, and the number of wrong tensors."""
    family = BY_NAME[name]
    ready = recorded(family, tmp_path)
    unit = ready.graph.units[-2]
    cut = ready.graph.node(unit.nodes[-1])
    assert cut.value is not None and cut.value.gradient
    broken = changed(ready.graph, cut.id, value=replace(cut.value, gradient=False))
    with pytest.raises(
        Refused, match=r"^model: a step of the recorded \w+ differs from .* \d+ of \d+ gradients.* by 1e\+00"
    ):
        compare(ready, broken, family)


class Sums(nn.Module):
    """Adds three terms between its layers, so large that every order of additions rounds differently."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 3)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        y = self.first(x)
        a, b, c = y.sin() * 1.1, y.cos() * 0.3, y.tanh()
        return (self.second((a + b) + c),)


def of_sums() -> tuple[g.Graph, nn.Module, Samples, list[g.Node]]:
    """A recorded Sums, and its additions in order."""
    model = Sums()
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(2))
    graph = fold_into_units(record_model(model, {"x": x}, leaf_modules(model, "layer")))
    given = Samples(inputs={"x": x}, labels=torch.tensor([0, 1, 2, 2, 1, 0]), task="image-classification", seed=5)
    return graph, model, given, [node for node in graph.nodes if node.target.endswith("add")]


def test_another_order_of_additions_is_rounding() -> None:
    """b + c + a in place of a + b + c passes, although not all bits agree."""
    graph, model, given, (inner, outer) = of_sums()
    a, b = inner.args
    same, c = outer.args
    reordered = changed(changed(graph, inner.id, args=(b, c)), outer.id, args=(same, a))
    pair = ModelAndRecording(reordered, model)
    assert any(distances(pair.step(given, recorded=True), pair.step(given)).values())
    compare_step(reordered, model, given)


@pytest.mark.parametrize("error", [1e-4, 1e-2])
def test_a_slightly_wrong_number_is_not(error: float) -> None:
    """A factor with a relative error of 1e-4 is refused, and the output is named."""
    graph, model, given, _ = of_sums()
    scaled = next(node for node in graph.nodes if node.args[1:] == (0.3,))
    wrong = changed(graph, scaled.id, args=(scaled.args[0], 0.3 * (1 + error)))
    with pytest.raises(Refused, match="differs from the model's own in its output .*, 4 of 4 gradients"):
        compare_step(wrong, model, given)


class OwnLoss(nn.Module):
    """A classifier whose own loss is its task's cross entropy times a factor."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.layer, self.factor = nn.Linear(4, 3), factor

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        """Return logits, and with labels the loss."""
        logits = self.layer(x)
        loss = None if labels is None else self.factor * nn.functional.cross_entropy(logits, labels)
        return SimpleNamespace(logits=logits, loss=loss)


@pytest.mark.parametrize("factor", [1.0, 1.0001])
def test_a_loss_with_something_else_in_it_is_refused(factor: float) -> None:
    """Only the task's cross entropy is trained, so a model whose own loss is another is refused with both numbers."""
    model = OwnLoss(factor)
    given = {"x": torch.randn(4, 4, generator=torch.Generator().manual_seed(1))}
    graph = fold_into_units(record_model(model, given, {"layer"}))
    step = Samples(inputs=given, labels=torch.tensor([0, 1, 2, 0]), task="image-classification", seed=1)
    if factor == 1.0:
        compare_step(graph, model, step)
        return
    with pytest.raises(Refused, match=r"its own loss is .*, where the cross entropy of image-classification is "):
        compare_step(graph, model, step)


@pytest.mark.parametrize("broken", [RuntimeError("no such labels"), None], ids=["an error", "no loss"])
def test_a_loss_that_cannot_be_compared_is_told(broken: Exception | None) -> None:
    """Bug: whatever went wrong while the model computed its own loss counted as agreement."""

    class Fails(OwnLoss):
        def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
            """Fail, or return no loss, when there are labels."""
            if labels is not None and broken is not None:
                raise broken
            return super().forward(x)

    model = Fails(1.0)
    given = {"x": torch.randn(4, 4, generator=torch.Generator().manual_seed(1))}
    graph = fold_into_units(record_model(model, given, {"layer"}))
    step = Samples(inputs=given, labels=torch.tensor([0, 1, 2, 0]), task="image-classification", seed=1)
    told = compare_step(graph, model, step)
    assert told is not None and "own loss was not compared" in told
    assert broken is None or "(no such labels)" in told


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_causal_models_of_float64_have_the_task_s_loss(name: str, tmp_path: Path) -> None:
    """Bug: transformers computes their own loss in float32 whatever the weights' type, so all of them were refused."""
    ready = recorded(BY_NAME[name], tmp_path, precision="float64")
    compare(ready, ready.graph, BY_NAME[name])


def test_a_wrong_recording_is_refused_by_preparation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Preparation compares the graph on the data and weights of training, without a device."""

    def forgetful(*given: Any) -> g.Graph:
        graph = record_units(*given)
        cut = next(n for n in graph.nodes if n.kind == g.MODULE and n.target.endswith("layer.0") and n.value)
        return changed(graph, cut.id, value=replace(cut.value, gradient=False))  # type: ignore[type-var]

    monkeypatch.setattr(importlib.import_module("fleetune.preparation.prepare"), "record_units", forgetful)
    with pytest.raises(Refused, match="BertForSequenceClassification differs from the model's own"):
        prepare(preparation_task(tmp_path, MODEL, data_request(FAMILY, tmp_path)))


@pytest.mark.parametrize(
    ("config", "packing", "why"),
    [
        ({"model_type": "bert", **ENCODER}, False, "reads the token that it is to predict"),
        (
            {"model_type": "bloom", "hidden_size": 32, "n_layer": 2, "n_head": 2, "vocab_size": 300},
            True,
            "data.packing",
        ),
    ],
    ids=["an encoder", "packed"],
)
def test_every_preparation_looks_at_what_a_model_reads(
    config: dict[str, Any], packing: bool, why: str, tmp_path: Path
) -> None:
    """An encoder for causal-lm, and a model that reads the samples beside one in its row, are refused."""
    family = Family("other", LANGUAGE, config)
    data = replace(data_request(family, tmp_path), packing=packing)
    with pytest.raises(Refused, match=why):
        prepare(preparation_task(tmp_path, model_request(family, dropout=False), data))


def test_a_model_that_does_not_fit_here_is_not_compared_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A note says that the comparison was skipped, and preparation succeeds."""
    notes: list[str] = []
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    task = preparation_task(tmp_path, MODEL, data_request(FAMILY, tmp_path))
    prepare(replace(task, note=notes.append))
    (said,) = [note for note in notes if "was not compared" in note and "GB are free" in note]
    assert "what it reads" in said and "was not looked at" in said
