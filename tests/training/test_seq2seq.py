"""Encoder-decoders: pairs of texts, targets that begin with the decoder's start token, and training over cuts."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fleetune.contracts.input_spec import InputSpec
from fleetune.contracts.run_config import DataRequest, Lora, ModelRequest
from fleetune.data.dialogues import Completion
from fleetune.data.examples import Example
from fleetune.data.prepared_data import DECODER_IDS, LABELS, PreparedData
from fleetune.data.preview import preview
from fleetune.data.tokenization import open_tokenizer
from fleetune.errors import Refused
from fleetune.evaluation.prediction import Predictor
from fleetune.evaluation.trained_model import ScoringOptions, score
from fleetune.preparation.prepare import prepare
from tests.support.data.samples import json_lines
from tests.support.preparation.instances import preparation_task
from tests.support.training.control_comparison import FP64, Comparison, difference, whole_model
from tests.support.training.control_runs import cut_run, request
from tests.support.training.runs import Prepared, plan, prepared
from tests.support.training.unsplit_training import Order, train_unsplit

T5 = {
    "model_type": "t5", "vocab_size": 300, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2,
    "dropout_rate": 0.0,
}  # fmt: skip
BART = {
    "model_type": "bart", "vocab_size": 300, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
    "max_position_embeddings": 64, "dropout": 0.0, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 2, "forced_eos_token_id": 2,
}  # fmt: skip
MODELS = {"t5": T5, "bart": BART}
PAIRS = [{"text": f"{i} " + "alpha beta " * (1 + i % 2), "target": f"{i % 7} gamma"} for i in range(120)]


def data(folder: Path, **changes: object) -> DataRequest:
    """Pairs in a file; some texts are padded, and some are cut."""
    folder.mkdir(parents=True, exist_ok=True)
    source = json_lines(folder / "pairs.jsonl", PAIRS)
    return DataRequest(source=str(source), max_length=20, target_length=12, **changes)  # type: ignore[arg-type]


def ready_for(name: str, folder: Path, **changes: object) -> Prepared:
    """Prepare a tiny model, and pairs."""
    model = ModelRequest(task="seq2seq", config=MODELS[name], **changes)  # type: ignore[arg-type]
    return prepared(model, data(folder), folder)


def beside_plain_loop(ready: Prepared, cuts: list[int], shares: list[list[int]], folder: Path) -> Comparison:
    """Train a pipeline, and the whole model without a dropout in plain PyTorch."""
    training = request(rounds=5, clip_norm=0.5)
    run = cut_run(ready, plan(ready.units, cuts, shares), training, folder)
    prepared_data = PreparedData(ready.folders.data)
    control = train_unsplit(whole_model(ready), prepared_data, training, ready.seed, (), Order([(0, 8)]))
    return Comparison(difference(ready, run, control), lambda: difference(ready, control, control))


@pytest.mark.parametrize("name", MODELS)
def test_encoder_and_decoder_train_as_the_unsplit_model(name: str, tmp_path: Path) -> None:
    """Cut inside the encoder and inside the decoder, with uneven shares: what the encoder makes crosses every later
    cut, and the embedding that both share is summed over its three holders. Within 1e-10 in float64."""
    ready = ready_for(name, tmp_path, precision="float64")
    blocks = [k for k, unit in enumerate(ready.units) if unit.endswith(".1")]
    found = beside_plain_loop(ready, blocks, [[3, 5], [8], [8]], tmp_path / "run")
    assert found.within(FP64), found.found


def test_adapters_train_on_a_frozen_encoder_decoder(tmp_path: Path) -> None:
    """LoRA on the attention of both halves of T5, within 1e-10 in float64."""
    lora = Lora(r=4, alpha=8, targets=("q", "v"))
    ready = ready_for("t5", tmp_path, precision="float64", lora=lora)
    found = beside_plain_loop(ready, [len(ready.units) // 2], [[8], [8]], tmp_path / "run")
    assert found.within(FP64), found.found


@pytest.mark.parametrize("name", MODELS)
def test_the_decoder_reads_what_transformers_gives_it(name: str, tmp_path: Path) -> None:
    """Preparation compares a step, and the decoder's ids, with the model's own; labels are the target with its end."""
    model = ModelRequest(task="seq2seq", config=MODELS[name])
    prepare(preparation_task(tmp_path, model, data(tmp_path)))
    found = PreparedData(tmp_path / "data")
    rows = found.rows("train", range(4))
    ends = [row[row != -100] for row in rows[LABELS]]
    assert all(row[-1] == 2 for row in ends), "the byte tokenizer's end"
    start = {"t5": 0, "bart": 2}[name]
    assert (rows[DECODER_IDS][:, 0] == start).all()
    for ids, labels in zip(rows[DECODER_IDS], ends, strict=True):
        np.testing.assert_array_equal(ids[1 : len(labels)], labels[:-1])
    assert "target_length 12" in " ".join(found.info.notes) or "longer" not in " ".join(found.info.notes)


def test_rows_may_have_prompt_and_completion(tmp_path: Path) -> None:
    """As sets for instructions have them, if there is no column of the config's texts."""
    rows = [{"prompt": row["text"], "completion": row["target"]} for row in PAIRS]
    source = json_lines(tmp_path / "pairs.jsonl", rows)
    model = ModelRequest(task="seq2seq", config=T5)
    ready = prepared(model, DataRequest(source=str(source), max_length=20, target_length=12), tmp_path / "a")
    same = prepared(model, data(tmp_path / "b"), tmp_path / "b")
    mine, theirs = (PreparedData(each.folders.data).rows("train", range(8)) for each in (ready, same))
    assert {name: array.shape for name, array in mine.items()} == {name: a.shape for name, a in theirs.items()}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"text": "a", "label": "b"}, "data.target_column"),
        ({"text": "a", "target": ""}, "'target' holds no text"),
        ({"text": 3, "target": "b"}, "'text' holds no text"),
    ],
)
def test_rows_without_a_pair_are_refused(row: dict[str, object], said: str, tmp_path: Path) -> None:
    """The sentence names the column, or the option that names another."""
    source = json_lines(tmp_path / "rows.jsonl", [row] * 8)
    with pytest.raises(Refused, match=said):
        prepared(ModelRequest(task="seq2seq", config=T5), DataRequest(source=str(source)), tmp_path)


def test_targets_that_a_model_begins_otherwise_are_refused(tmp_path: Path) -> None:
    """mBART begins with the code of a language, which ends its labels."""
    config = {**BART, "model_type": "mbart", "decoder_start_token_id": 1}
    with pytest.raises(Refused, match="begins what it writes with other tokens"):
        prepare(preparation_task(tmp_path, ModelRequest(task="seq2seq", config=config), data(tmp_path)))


def test_targets_beyond_the_models_positions_are_refused(tmp_path: Path) -> None:
    """The sentence names the setting and its largest value."""
    source = json_lines(tmp_path / "pairs.jsonl", PAIRS)
    asked = DataRequest(source=str(source), max_length=20, target_length=65)
    with pytest.raises(Refused, match="data.target_length to at most 64"):
        prepared(ModelRequest(task="seq2seq", config=BART), asked, tmp_path)


def test_a_preview_shows_what_is_read_and_what_is_written(tmp_path: Path) -> None:
    """The target alone carries loss."""
    ready = ready_for("t5", tmp_path)
    found = preview(PreparedData(ready.folders.data), 2)
    first = found.samples[0]
    assert [piece.loss for piece in first.pieces] == [False, True] and "gamma" in first.pieces[1].text
    train = found.splits[0]
    assert train.loss_share is not None and 0.1 < train.loss_share < 0.6


def test_held_out_pairs_are_scored_by_their_targets(tmp_path: Path) -> None:
    """Loss is the mean over the targets' tokens, as the model itself has it of one pair at a time."""
    ready = ready_for("t5", tmp_path, precision="float64")
    held, model = PreparedData(ready.folders.data), whole_model(ready).eval()
    found = score(model, held, ScoringOptions(batch_samples=5))
    rows = {name: torch.from_numpy(array) for name, array in held.rows("test", range(held.size("test"))).items()}
    with torch.no_grad():
        own = float(model(**rows).loss)
    assert found.values["loss"] == pytest.approx(own, rel=1e-5)
    assert found.values["perplexity"] == pytest.approx(np.exp(own), rel=1e-5)


def test_predictions_are_what_the_decoder_writes(tmp_path: Path) -> None:
    """Greedy, token by token, from the encoder's reading of the text, cut as in training."""
    ready = ready_for("t5", tmp_path)
    held, model = PreparedData(ready.folders.data), whole_model(ready).eval()
    predictor = Predictor(model=model, data=held, new_tokens=5)
    long = "alpha " * 20
    (one, other) = predictor.predictions(
        [
            Example(location="text 1", content="alpha beta", label=None),
            Example(location="text 2", content=Completion(long, ""), label=None),
        ]
    )
    assert predictor.cut == ["text 2"] and other.input == long
    tokenizer = open_tokenizer(InputSpec(task="seq2seq", tokenizer=held.tokenizer))
    ids = torch.tensor([tokenizer("alpha beta")["input_ids"]])
    written = torch.tensor([[0]])
    with torch.no_grad():
        for _ in range(5):
            logits = model(input_ids=ids, decoder_input_ids=written).logits
            written = torch.cat([written, logits[:, -1:].argmax(-1)], dim=1)
            if int(written[0, -1]) == 2:
                break
    assert one.text == tokenizer.decode(written[0], skip_special_tokens=True)
