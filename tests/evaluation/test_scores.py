"""Scores compared with numbers worked out by hand."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import GPT2Config

from fleetune.contracts.input_spec import IGNORE_INDEX, InputSpec
from fleetune.contracts.run_config import DataRequest
from fleetune.data.prepared_data import PreparedData
from fleetune.data.writer import prepare_data
from fleetune.errors import Refused
from fleetune.evaluation import token_loss
from fleetune.evaluation.token_loss import CHUNK_BYTES, LOGITS_BYTES
from fleetune.evaluation.trained_model import ScoringOptions, class_scores, classification_scores, score
from fleetune.models.loss import count_targets, loss_sum
from fleetune.profiling.live_bytes import LiveBytes
from tests.support.data.samples import json_lines
from tests.support.evaluation.instances import Told, text_data


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


class Wide(nn.Module):
    """Logits over a large vocabulary, which depend on the token alone."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.table = nn.Embedding(264, vocabulary)
        self.config = GPT2Config(vocab_size=vocabulary, bos_token_id=1, eos_token_id=2)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        """A row of the table for each token."""
        return SimpleNamespace(logits=self.table(input_ids))


def test_logits_of_a_large_vocabulary_are_held_for_few_samples(tmp_path: Path) -> None:
    """Bug: logits of 32 whole samples were held beside two copies in float64: 97 GB for a vocabulary of 152,000 and
    1024 tokens. Those of a batch take LOGITS_BYTES at most, and of their copies only some rows live at a time. The loss
    is that of all of them at once, within the rounding of float64."""
    rows = [{"text": "ab" * (3 * n)} for n in range(1, 25)]
    source = json_lines(tmp_path / "rows.jsonl", rows)
    needs = InputSpec(task="causal-lm", vocab_size=264, max_positions=256)
    prepare_data(DataRequest(source=str(source), max_length=256, test_fraction=0.5), needs, tmp_path / "data", 0)
    data, model = PreparedData(tmp_path / "data"), Wide(50_000)
    samples = data.size("test")
    one_sample = 256 * 50_000 * 4
    assert samples * one_sample > 2 * LOGITS_BYTES > 4 * one_sample
    with LiveBytes([model.table.weight]) as live:
        found = score(model, data, ScoringOptions()).values["loss"]
    assert LOGITS_BYTES - one_sample < live.peak_bytes < LOGITS_BYTES + 3 * CHUNK_BYTES
    terms, targets = 0.0, 0
    for row in range(samples):
        labels = torch.from_numpy(data.rows("test", [row])["labels"])
        with torch.no_grad():
            terms += float(loss_sum(model.table(labels.clamp(min=0)).double(), labels, "causal-lm"))
        targets += count_targets(labels.numpy(), "causal-lm")
    assert found == pytest.approx(terms / targets, rel=1e-13)


@pytest.mark.parametrize("task", ["causal-lm", "seq2seq"])
def test_the_loss_of_chunks_is_that_of_the_whole(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few tokens are added up at a time, the sum is `loss_sum` of the batch, within the rounding of float64;
    without any target it is zero."""
    draws = torch.Generator().manual_seed(2)
    logits = torch.randn(5, 9, 30, generator=draws)
    labels = torch.randint(0, 30, (5, 9), generator=draws)
    labels[:, 6:] = labels[2] = IGNORE_INDEX
    whole = float(loss_sum(logits.double(), labels, task))
    for rows in (1, 4, 1000):
        monkeypatch.setattr(token_loss, "CHUNK_BYTES", rows * 30 * 8)
        assert token_loss.summed_loss(logits, labels, task) == pytest.approx(whole, rel=1e-14)
    assert token_loss.summed_loss(logits, torch.full_like(labels, IGNORE_INDEX), task) == 0.0


def test_a_sample_that_alone_is_too_large_is_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch has one sample at least, and no more than are asked for."""
    data = text_data(tmp_path / "data", "causal-lm")
    assert token_loss.samples_at_once(Wide(264), data, 32) == 32
    monkeypatch.setattr(token_loss, "LOGITS_BYTES", 5 * 16 * 264 * 4)
    assert [token_loss.samples_at_once(Wide(264), data, most) for most in (32, 4)] == [5, 4]
    monkeypatch.setattr(token_loss, "LOGITS_BYTES", 1)
    assert token_loss.samples_at_once(Wide(264), data, 32) == 1


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
