"""Scores compared with numbers worked out by hand."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from fleetune.data.prepared_data import PreparedData
from fleetune.errors import Refused
from fleetune.evaluation.trained_model import ScoringOptions, class_scores, classification_scores, score
from tests.evaluation.instances import Told, text_data


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    """Text data of three classes."""
    return text_data(tmp_path_factory.mktemp("scores") / "data")


def test_macro_f1_by_hand() -> None:
    """Wanted 0 0 1 1 2, predicted 0 1 1 1 0: F1 of the classes is 1/2, 4/5 and 0; three of five are right."""
    found = classification_scores(np.array([0, 1, 1, 1, 0]), np.array([0, 0, 1, 1, 2]))
    assert found["accuracy"] == pytest.approx(3 / 5)
    assert found["macro_f1"] == pytest.approx((1 / 2 + 4 / 5 + 0) / 3)


def test_scores_of_a_perfect_model(labelled: PreparedData) -> None:
    """Logits that favour the right class by ln 2 over each of two others: loss ln 2, everything right."""
    labels = torch.from_numpy(labelled.rows("test", range(labelled.size("test")))["labels"])
    logits = torch.nn.functional.one_hot(labels, 3) * math.log(2)
    found = score(Told(logits), labelled, ScoringOptions(batch_samples=5)).values
    assert found == pytest.approx({"accuracy": 1.0, "macro_f1": 1.0, "loss": math.log(2)})
    assert list(found) == ["accuracy", "macro_f1", "loss"]


def test_scores_of_equal_logits(labelled: PreparedData) -> None:
    """Equal logits: loss ln 3; accuracy is the share of class 0 and its F1 the only one above zero."""
    samples = labelled.size("test")
    labels = labelled.rows("test", range(samples))["labels"]
    share = float((labels == 0).mean())
    found = score(Told(torch.zeros(samples, 3)), labelled, ScoringOptions()).values
    assert found["loss"] == pytest.approx(math.log(3))
    assert found["accuracy"] == pytest.approx(share)
    assert found["macro_f1"] == pytest.approx(2 * share / (1 + share) / 3)


def test_perplexity_counts_predicted_tokens_only(tmp_path: Path) -> None:
    """Equal logits over 264 tokens: perplexity 264, although padding and first tokens have wild logits."""
    data = text_data(tmp_path / "data", "causal-lm")
    rows = data.rows("test", range(data.size("test")))
    logits = torch.zeros(*rows["input_ids"].shape, 264)
    last = rows["attention_mask"].sum(axis=1) - 1
    for row, position in enumerate(last):
        logits[row, position:, 7] = 50.0  # what follows the last token is padding: it must not count
    found = score(Told(logits), data, ScoringOptions(batch_samples=3)).values
    assert found == pytest.approx({"loss": math.log(264), "perplexity": 264.0})


def test_loss_is_per_token_over_the_whole_split(tmp_path: Path) -> None:
    """Samples with more tokens weigh more, whatever the batches."""
    data = text_data(tmp_path / "data", "causal-lm")
    samples = data.size("test")
    logits = torch.randn(samples, 16, 264, generator=torch.Generator().manual_seed(0))
    labels = torch.from_numpy(data.rows("test", range(samples))["labels"])
    chances = torch.log_softmax(logits[:, :-1].double(), dim=-1)
    terms = [
        -chances[n, t, labels[n, t + 1]].item() for n in range(samples) for t in range(15) if labels[n, t + 1] >= 0
    ]
    expected = sum(terms) / len(terms)
    for batch in (1, 4, 100):
        assert score(Told(logits), data, ScoringOptions(batch_samples=batch)).values["loss"] == pytest.approx(
            expected, rel=1e-6
        )


def test_progress_ends_at_the_last_sample(labelled: PreparedData) -> None:
    """Progress counts every sample, the short last batch included; the number of threads is restored."""
    said: list[tuple[str, float, float, str]] = []
    threads = torch.get_num_threads()
    samples = labelled.size("test")
    scoring = ScoringOptions(
        batch_samples=5, progress=lambda what, done, total, unit="": said.append((what, done, total, unit))
    )
    score(Told(torch.zeros(samples, 3)), labelled, scoring, "fool")
    assert [done for _, done, _, _ in said] == [*range(5, samples, 5), samples]
    assert said[-1] == ("scoring the fool", samples, samples, "samples")
    assert torch.get_num_threads() == threads


def test_diverged_model_is_refused(labelled: PreparedData) -> None:
    """A loss that is not finite is refused in a sentence, and nothing is written."""
    with pytest.raises(Refused, match="the loss of the fool is nan; training diverged"):
        score(Told(torch.full((labelled.size("test"), 3), math.nan)), labelled, ScoringOptions(), "fool")


def test_huge_perplexity_stays_finite(tmp_path: Path) -> None:
    """A loss of thousands gives a huge but finite perplexity."""
    data = text_data(tmp_path / "data", "causal-lm")
    logits = torch.zeros(data.size("test"), 16, 264)
    logits[:, :, 0] = 5000.0
    assert math.isfinite(score(Told(logits), data, ScoringOptions()).values["perplexity"])


def test_every_class_has_its_own_scores() -> None:
    """A mean hides a class that is never recognised: half of class a is found, b is always right, c does not occur."""
    taken, given = np.array([0, 1, 1, 1, 2]), np.array([0, 0, 1, 1, 1])
    found = class_scores(taken, given, ("a", "b", "c"))
    assert [(one.name, one.samples) for one in found] == [("a", 2), ("b", 3), ("c", 0)]
    assert [one.precision for one in found] == pytest.approx([1.0, 2 / 3, 0.0])
    assert [one.recall for one in found] == pytest.approx([1 / 2, 2 / 3, 0.0])
    assert [one.f1 for one in found] == pytest.approx([2 / 3, 2 / 3, 0.0])


def test_classes_come_with_the_names_of_the_data(labelled: PreparedData) -> None:
    """Classes are in order of number, and together they are the whole split."""
    samples = labelled.size("test")
    found = score(Told(torch.zeros(samples, 3)), labelled, ScoringOptions()).classes
    assert [one.name for one in found] == list(labelled.labels)
    assert sum(one.samples for one in found) == samples
