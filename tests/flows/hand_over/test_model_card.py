"""The model card says how the model was trained, in the numbers and types that training used."""

from dataclasses import replace
from pathlib import Path

import pytest

from fleetune.contracts.run_config import Lora, ModelRequest
from flows.hand_over.model_card import model_card
from tests.support.data.chat_samples import chat_spec, chats
from tests.support.data.samples import json_lines, prepared
from tests.support.flows.hand_over.runs import ADAPTED, WHOLE, run_of

ANY = Lora(r=4, alpha=32, dropout=0.05, targets="query|value", start="/somewhere/earlier")


@pytest.mark.parametrize(
    ("request_", "rows"),
    [
        (WHOLE, {"precision": "float32"}),
        (replace(WHOLE, precision="float64"), {"precision": "float64"}),
        (
            replace(ADAPTED, mixed_precision="bf16"),
            {
                "precision": "bfloat16, trained weights in float32 (mixed precision)",
                "LoRA": "r 2, alpha 16, dropout 0, targets query, value",
            },
        ),
        (
            replace(ADAPTED, mixed_precision="fp16", quantization="nf4", lora=ANY),
            {
                "precision": "float16, trained weights in float32 (mixed precision), frozen linear layers in 4 bits "
                "(nf4)",
                "LoRA": r"r 4, alpha 32, dropout 0.05, targets query\|value, from an earlier adapter",
            },
        ),
    ],
    ids=["plain", "double", "bf16 LoRA", "fp16 QLoRA"],
)
def test_the_card_names_precision_and_adapter(request_: ModelRequest, rows: dict[str, str], tmp_path: Path) -> None:
    """Mixed precision and 4 bits are not called float32, and an adapter's rank, alpha, dropout and targets are told."""
    found, _ = run_of(tmp_path, WHOLE)
    card = model_card(replace(found, run=replace(found.run, config=replace(found.run.config, model=request_))))
    for name in ("precision", "LoRA"):
        assert [line for line in card.splitlines() if line.startswith(f"| {name} |")] == (
            [f"| {name} | {rows[name]} |"] if name in rows else []
        )


@pytest.mark.parametrize("packing", [True, False])
def test_the_card_tells_sequences_from_samples(packing: bool, tmp_path: Path) -> None:
    """A batch of packed chats counts sequences, each of which holds several samples."""
    found, _ = run_of(tmp_path, WHOLE)
    source = json_lines(tmp_path / "chats.jsonl", chats(40))
    data = prepared(tmp_path / "chats", source, chat_spec(tmp_path / "tokenizer"), max_length=96, packing=packing)
    assert found.scores is not None
    card = model_card(replace(found, data=data.folder, scores=replace(found.scores, samples=2)))
    rows, counted = data.size("train"), "sequences" if packing else "samples"
    assert f"| {counted} of a round | {found.run.config.training.batch_samples} |" in card
    assert f"On 2 {counted}:" in card
    assert (f" samples in {rows} sequences to train on" in card) == packing


@pytest.mark.parametrize(
    ("number", "sequences", "said"),
    [
        (None, False, ":"),
        (0, False, " not trained on:"),
        (3, False, ", 3 of them trained on:"),
        (3, True, ", 3 of the sequences trained on:"),
    ],
    ids=str,
)
def test_the_card_calls_no_score_fairer_than_it_is(
    number: int | None, sequences: bool, said: str, tmp_path: Path
) -> None:
    """Bug: the card said "that nobody trained on" of whatever was scored, repeated rows of training among it."""
    found, _ = run_of(tmp_path, WHOLE)
    assert found.scores is not None
    scores = replace(found.scores, samples=12, trained_on=number, sequences=sequences)
    assert scores.scored == f"12 {'sequences' if sequences else 'samples'}{said[:-1]}"
    assert f"\nOn 12 samples{said}\n" in model_card(replace(found, scores=scores))
