"""A model says of a token what it read before it, and of a text what the text says."""

from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoModelForSequenceClassification

from fleetune.errors import Refused
from fleetune.preparation.reading_check import check_reading
from tests.support.training.model_families import ENCODER, GPT2

AUTO: dict[str, Any] = {
    "causal-lm": AutoModelForCausalLM,
    "seq2seq": AutoModelForSeq2SeqLM,
    "sequence-classification": AutoModelForSequenceClassification,
}
TEXT = "sequence-classification"
BERT = {"model_type": "bert", **ENCODER}
LLAMA = {"model_type": "llama", "num_key_value_heads": 1, "pad_token_id": 0, **ENCODER}
XLNET = {"model_type": "xlnet", "d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 64, "vocab_size": 300}
T5 = {"model_type": "t5", "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "vocab_size": 300}


def model(task: str, config: dict[str, Any]) -> nn.Module:
    """A small random model."""
    settings = dict(config)
    torch.manual_seed(0)
    made: nn.Module = AUTO[task].from_config(AutoConfig.for_model(settings.pop("model_type"), **settings))
    return made


def check(task: str, made: nn.Module) -> None:
    """Check the model on three texts, of which one is padded."""
    ids = torch.randint(5, 300, (3, 12), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, 8:], ids[1, 8:] = 0, 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    if task == "seq2seq":
        inputs["decoder_input_ids"] = ids.flip(0)
    check_reading(made, inputs, ids, task)


@pytest.mark.parametrize(
    ("task", "config"),
    [
        ("causal-lm", {"model_type": "gpt2", **GPT2}),
        ("causal-lm", {**BERT, "is_decoder": True}),
        ("seq2seq", T5),
        ("sequence-classification", BERT),
        ("sequence-classification", LLAMA),
    ],
    ids=["gpt2", "bert as decoder", "t5", "bert", "llama"],
)
def test_models_that_read_what_they_may_are_accepted(task: str, config: dict[str, Any]) -> None:
    """Decoders look back only, and a mask hides padding."""
    made = model(task, config)
    check(task, made)
    assert made.training


def test_an_encoder_that_sees_the_token_it_predicts_is_refused() -> None:
    """Bug: BERT's perplexity on random letters of 16 was 1.00, which no model reaches that has to predict them."""
    with pytest.raises(Refused, match=r"BertLMHeadModel reads the token that it is to predict.*is_decoder to true"):
        check("causal-lm", model("causal-lm", BERT))


def test_a_classifier_that_takes_padding_for_the_end_of_a_text_is_refused() -> None:
    """XLNet scores the last position: with padding on the right it is another score than that of the text alone."""
    with pytest.raises(Refused, match="XLNetForSequenceClassification.*with the padding behind it"):
        check("sequence-classification", model("sequence-classification", XLNET))


class Centred(nn.Module):
    """Says of a sample how it differs from the mean of its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Centre the samples."""
        return self.scale * (pixel_values - pixel_values.mean(0)).flatten(1)


def test_a_model_that_mixes_samples_is_refused() -> None:
    """A group that shares out a micro-batch would train it otherwise than one device."""
    with pytest.raises(Refused, match="Centred says of a sample changes by .* with the samples beside it"):
        check_reading(Centred(), {"pixel_values": torch.randn(3, 1, 4, 4)}, torch.arange(3), "image-classification")


BART = {"model_type": "bart", "d_model": 32, "vocab_size": 300, "eos_token_id": 2, "pad_token_id": 1, **{
    f"{part}_{name}": number for part in ("encoder", "decoder")
    for name, number in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 64))
}}  # fmt: skip


@pytest.mark.parametrize("config", [BERT, LLAMA, BART, XLNET], ids=["bert", "llama", "bart", "xlnet"])
def test_padding_is_tried_where_the_first_texts_have_none(config: dict[str, Any]) -> None:
    """Bug: XLNet was accepted if the first texts filled data.max_length, though later ones were padded. BART scores the
    token that ends a text, which must stay."""
    ids = torch.arange(24).view(2, 12) + 5
    ids[:, -1] = 2
    inputs, made = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, model(TEXT, config)
    if config is not XLNET:
        return check_reading(made, inputs, ids, TEXT)
    with pytest.raises(Refused, match="XLNetForSequenceClassification.*with the padding behind it"):
        check_reading(made, inputs, ids, TEXT)
