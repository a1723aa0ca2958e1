"""Predictions are what the model's own logits say of inputs prepared as for training."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fleetune.contracts.input_spec import InputSpec
from fleetune.contracts.run_config import DataRequest, Lora, ModelRequest
from fleetune.data.dialogues import Chat, Completion
from fleetune.data.examples import Example
from fleetune.data.prepared_data import PreparedData
from fleetune.data.tokenization import open_tokenizer
from fleetune.data.unlabelled import asked_images, asked_texts
from fleetune.data.writer import prepare_data
from fleetune.errors import Refused
from fleetune.evaluation.prediction import Prediction, Predictor
from fleetune.evaluation.prompts import end_ids, prompt_ids
from tests.support.data.chat_samples import CHATML, chat_spec, chat_tokenizer, chats
from tests.support.data.samples import IMAGES, json_lines
from tests.support.evaluation.instances import BERT, LABELS, model_folder, moved, started, text_data

GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "vocab_size": 300,
    "n_positions": 48,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
}


def classifier(folder: Path) -> Predictor:
    """A BERT with other weights than it was drawn with, and the data of its run."""
    request = ModelRequest(task="sequence-classification", config=BERT)
    return Predictor(
        model=moved(started(model_folder(folder / "model", request), request)), data=text_data(folder / "data")
    )


def causal(folder: Path) -> Any:
    """A small GPT-2."""
    request = ModelRequest(task="causal-lm", config=GPT2)
    return moved(started(model_folder(folder / "model", request), request)).eval()


def completion(text: str) -> Example:
    """An input of causal-lm."""
    return Example(location="text 1", content=text, label=None)


def test_classes_of_prepared_texts_are_those_of_their_prepared_rows(tmp_path: Path) -> None:
    """Texts of the test split get the probabilities that the model gives their rows, also where batches end."""
    predictor = classifier(tmp_path)
    texts = [f"number {n} " + "!" * (n % 5) for n in range(40)]
    found = {one.input: one for one in predictor.predictions(asked_texts(texts, chats=False))}
    assert list(found) == texts
    rows = predictor.data.rows("test", np.arange(predictor.data.size("test")))
    labels = rows.pop("labels")
    with torch.no_grad():
        wanted = predictor.model(**{name: torch.from_numpy(array) for name, array in rows.items()}).logits.softmax(-1)
    shown = {tuple(round(one.probabilities[name], 5) for name in LABELS) for one in found.values()}
    for row in wanted[:, [predictor.data.labels.index(name) for name in LABELS]]:
        assert any(np.allclose(row, other, atol=2e-5) for other in shown)
    assert len(labels) == 13
    for one in found.values():
        assert one.label == max(one.probabilities, key=lambda name: one.probabilities[name])
        assert sum(one.probabilities.values()) == pytest.approx(1)


def test_longer_texts_than_those_of_training_are_cut_and_said(tmp_path: Path) -> None:
    """They are cut as in training; the prediction is that of their beginning."""
    predictor = classifier(tmp_path)
    longer = "number 1 " + "?" * 100
    short, cut = predictor.predictions(asked_texts([longer[:14], longer], chats=False))
    assert predictor.cut == ["text 2"]
    assert short.probabilities.keys() == cut.probabilities.keys()


def test_a_model_that_diverged_predicts_nothing(tmp_path: Path) -> None:
    """Logits that are not finite are refused, with the input's place."""
    predictor = classifier(tmp_path)
    with torch.no_grad():
        predictor.model.classifier.bias.fill_(float("nan"))
    with pytest.raises(Refused, match=r"text 1: the model's output is not finite; it diverged in training"):
        list(predictor.predictions(asked_texts(["a"], chats=False)))


def test_a_model_that_diverged_writes_nothing(tmp_path: Path) -> None:
    """Bug: of logits that are NaN the first token was taken, again and again, and the text was empty."""
    predictor = Predictor(model=causal(tmp_path), data=text_data(tmp_path / "data", "causal-lm"))
    with torch.no_grad():
        predictor.model.transformer.ln_f.bias.fill_(float("nan"))
    with pytest.raises(Refused, match=r"text 1: the model's output is not finite; it diverged in training"):
        list(predictor.predictions([completion("a")]))


def test_a_token_that_the_model_does_not_know_is_refused(tmp_path: Path) -> None:
    """Bug: a text with a token beyond the model's vocabulary, of which training had none, ended in an IndexError."""
    predictor = classifier(tmp_path)
    assert predictor.data.tokenizer is not None
    tokenizer = open_tokenizer(InputSpec(task="sequence-classification", tokenizer=predictor.data.tokenizer))
    tokenizer.add_tokens([f"<{number}>" for number in range(9)])
    tokenizer.save_pretrained(predictor.data.tokenizer)
    with pytest.raises(Refused, match="the tokenizer gives token 268, but the model's vocab_size is 264"):
        list(predictor.predictions(asked_texts(["a <8>"], chats=False)))


def test_texts_go_on_by_the_most_probable_token(tmp_path: Path) -> None:
    """What is written is what a loop of argmax over whole sequences writes, up to the end token or the room left."""
    model, data = causal(tmp_path), text_data(tmp_path / "data", "causal-lm")
    tokenizer = open_tokenizer(chat_spec(tmp_path / "tokenizer", None))
    (found,) = Predictor(model=model, data=data, new_tokens=100).predictions([completion("number 7")])
    ids = prompt_ids(tokenizer, completion("number 7"))
    assert tokenizer.decode(ids) == "<bos>number 7"  # the end token, which training has after texts, is left out
    written: list[int] = []
    while len(ids) + len(written) < GPT2["n_positions"]:
        with torch.no_grad():
            token = int(model(input_ids=torch.tensor([[*ids, *written]])).logits[0, -1].argmax())
        written.append(token)
        if token == tokenizer.eos_token_id:
            break
    assert found == Prediction(input="number 7", text=tokenizer.decode(written), unfinished=True)


@pytest.mark.parametrize("adapter", [False, True], ids=["whole", "adapter"])
def test_the_bases_generation_settings_change_no_token(adapter: bool, tmp_path: Path) -> None:
    """Bug: beams, penalties, least lengths and forbidden tokens of the base came before what was asked for, so that it
    was not the most probable token each time. Only its end tokens count, and the model keeps its settings."""
    lora = Lora(r=2, targets=("c_attn",)) if adapter else None
    request = ModelRequest(task="causal-lm", config=GPT2, lora=lora)
    model = moved(started(model_folder(tmp_path / "model", request), request)).eval()
    data = text_data(tmp_path / "data", "causal-lm")
    predictor = Predictor(model=model, data=data, new_tokens=12)
    (greedy,) = predictor.predictions([completion("number 7")])
    tokenizer = open_tokenizer(chat_spec(tmp_path / "tokenizer", None))
    with torch.no_grad():
        begun = torch.tensor([prompt_ids(tokenizer, completion("number 7"))])
        first = int(model(input_ids=begun).logits[0, -1].argmax())
    of_base = {
        "num_beams": 3, "repetition_penalty": 5.0, "min_length": 30, "no_repeat_ngram_size": 1, "do_sample": True,
        "suppress_tokens": [first], "bad_words_ids": [[first]], "forced_eos_token_id": 9,
        "num_return_sequences": 2, "encoder_no_repeat_ngram_size": 1, "sequence_bias": {(first,): -50.0},
    }  # fmt: skip
    for name, value in of_base.items():
        setattr(model.generation_config, name, value)
    assert list(predictor.predictions([completion("number 7")])) == [greedy]
    assert model.generation_config.num_beams == 3
    model.generation_config.eos_token_id = [first]
    (ended,) = predictor.predictions([completion("number 7")])
    assert (ended.text, ended.unfinished) == ("", False) and greedy.unfinished


def test_a_space_that_training_has_within_a_token_is_told(tmp_path: Path) -> None:
    """Bug: what follows a token of a space alone was asked, which training never had, and nothing told it; a tokenizer
    of bytes has such tokens, and so has a line end."""
    data = text_data(tmp_path / "data", "causal-lm")
    assert data.tokenizer is not None
    for joined in (False, True):
        predictor = Predictor(model=causal(tmp_path / str(joined)), data=data, new_tokens=1)
        list(predictor.predictions([completion("is: "), completion("is:"), completion("is:\n")]))
        assert predictor.spaced == (["text 1"] if joined else [])
        file = data.tokenizer / "tokenizer.json"
        described = json.loads(file.read_text())
        described["model"]["merges"] = [["\u0120", "a"]]
        described["model"]["vocab"]["\u0120a"] = len(described["model"]["vocab"])
        file.write_text(json.dumps(described))


def test_prompts_beyond_the_models_positions_are_refused(tmp_path: Path) -> None:
    """There would be no room for a single token."""
    predictor = Predictor(model=causal(tmp_path), data=text_data(tmp_path / "data", "causal-lm"))
    with pytest.raises(Refused, match="text 1: it has 61 tokens, and the model takes 48; shorten it"):
        list(predictor.predictions([completion("x" * 60)]))


def test_what_a_user_says_is_written_by_the_chat_template(tmp_path: Path) -> None:
    """A text for a model of chats becomes the template's prompt, with the beginning of an answer; the mark that the
    template puts after answers ends one."""
    folder = tmp_path / "data"
    source = json_lines(tmp_path / "chats.jsonl", chats(12))
    prepare_data(DataRequest(source=str(source), max_length=48), chat_spec(tmp_path / "tokenizer"), folder, 0)
    data = PreparedData(folder)
    assert data.info.chats and not text_data(tmp_path / "texts", "causal-lm").info.chats
    assert data.tokenizer is not None
    tokenizer = open_tokenizer(replace(chat_spec(tmp_path / "again"), tokenizer=data.tokenizer))
    (asked,) = asked_texts(["why?"], data.info.chats)
    prompt = "<|im_start|>user\nwhy?<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(prompt_ids(tokenizer, asked)) == prompt
    marks = tokenizer.get_added_vocab()
    assert end_ids(tokenizer, None, asked) == sorted([tokenizer.eos_token_id, marks["<|im_end|>"]])
    (found,) = Predictor(model=causal(tmp_path), data=data, new_tokens=4).predictions([asked])
    assert found.input == "why?"


def test_a_chat_without_a_template_is_refused(tmp_path: Path) -> None:
    """A tokenizer without one cannot write it."""
    tokenizer = open_tokenizer(chat_spec(tmp_path / "plain", None))
    chat = Example(location="row 3", content=Chat(({"role": "user", "content": "a"},)), label=None)
    with pytest.raises(Refused, match="row 3: it is a chat, and the tokenizer of the run has no chat template"):
        prompt_ids(tokenizer, chat)
    strict = open_tokenizer(replace(chat_spec(tmp_path / "s"), tokenizer=chat_tokenizer(tmp_path / "t", "{{ 1 / 0 }}")))
    with pytest.raises(Refused, match=r"row 3: the chat template does not take its messages \(division by zero\)"):
        prompt_ids(strict, chat)
    begun = Example(location="", content=Completion("ab", ""), label=None)
    assert end_ids(strict, [5, 6], begun) == sorted({5, 6, strict.eos_token_id})
    assert CHATML in open_tokenizer(chat_spec(tmp_path / "c")).chat_template
    assert tokenizer.decode(prompt_ids(tokenizer, begun)) == "<bos>ab"


def test_a_template_that_hides_where_answers_end_is_refused(tmp_path: Path) -> None:
    """Whatever a template raises about an answer, or leaves out of it, is told: nothing would end what is written."""
    chat = Example(location="row 3", content=Chat(({"role": "user", "content": "a"},)), label=None)
    for name, template, says in (
        ("raises", "{{ raise_exception('no') if messages | length > 1 }}" + CHATML, r"row 3: .*messages \(no\)"),
        ("hides", CHATML.replace("message.content", "message.content[:0]"), "row 3: .* which token ends one"),
    ):
        tokenizer = open_tokenizer(chat_spec(tmp_path / name, template))
        with pytest.raises(Refused, match=says):
            end_ids(tokenizer, None, chat)


class Mean(nn.Module):
    """Logits of two classes: how dark and how light an image is."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, pixel_values: torch.Tensor) -> Any:
        """Classes are `0` and `1`."""
        light = pixel_values.mean(dim=(1, 2, 3)) * 10 * self.scale
        return type("Output", (), {"logits": torch.stack([-light, light], dim=1)})()


def test_images_go_through_the_processor_of_training(tmp_path: Path) -> None:
    """A dark and a light image, of other sizes than those of training, as files, in a folder, and by name."""
    from PIL import Image

    for name, grey in (("dark", 10), ("light", 240)):
        for number in range(6):
            (tmp_path / "set" / name).mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (12, 12), (grey + number,) * 3).save(tmp_path / "set" / name / f"{number}.png")

    prepare_data(DataRequest(source=str(tmp_path / "set"), image_size=8), IMAGES, tmp_path / "data", 0)
    data = PreparedData(tmp_path / "data")
    shown = tmp_path / "shown"
    shown.mkdir()
    Image.new("RGB", (30, 30), (20, 20, 20)).save(shown / "a.png")
    Image.new("RGB", (8, 8), (200, 220, 210)).save(shown / "b.jpg")
    (shown / "notes.md").write_text("no image")
    found = list(Predictor(model=Mean(), data=data).predictions(asked_images([shown, shown / "a.png"])))
    assert [one.label for one in found] == ["dark", "light", "dark"]
    assert [Path(one.input).name for one in found] == ["a.png", "b.jpg", "a.png"]
    with pytest.raises(Refused, match="no such file; give images, or folders of images"):
        list(asked_images([tmp_path / "none.png"]))
    with pytest.raises(Refused, match="no image in it; images end in"):
        (tmp_path / "empty").mkdir()
        list(asked_images([tmp_path / "empty"]))
