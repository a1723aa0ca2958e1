"""Models that keep the samples of a packed row apart, and models that do not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers.processors import TemplateProcessing
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from benchmarks.families.small_configs import small_config
from fleetune.contracts.input_spec import InputSpec
from fleetune.data.prepared_data import PreparedData, sample_spans
from fleetune.data.tokenization import open_tokenizer
from fleetune.errors import Refused
from fleetune.models.loss import count_targets, loss_sum
from fleetune.preparation.packing_check import check_packing
from tests.support.data.chat_samples import chat_spec, chats
from tests.support.data.samples import CAUSAL, json_lines, prepared
from tests.support.training.model_families import ENCODER, GPT2

LLAMA: dict[str, Any] = {"model_type": "llama", "num_key_value_heads": 1, **ENCODER}
WINDOW = {"model_type": "mistral", "num_key_value_heads": 1, "sliding_window": 16, **ENCODER}
QWEN3 = {"model_type": "qwen3", "num_key_value_heads": 1, "head_dim": 16, **ENCODER}
KEEP_APART = {"gpt2": {**GPT2, "n_positions": 128}, "llama": LLAMA, "mistral": WINDOW, "qwen3": QWEN3}
BLOOM = {"model_type": "bloom", "hidden_size": 32, "n_layer": 2, "n_head": 2, "vocab_size": 300}
LFM2 = {"model_type": "lfm2", "num_key_value_heads": 1, "layer_types": ["conv", "full_attention"], **ENCODER}
MIXED = {"bloom": BLOOM, "lfm2": LFM2}


def chat_data(folder: Path, packing: bool, count: int = 40) -> PreparedData:
    """Chats of different lengths, packed or one per row."""
    spec = chat_spec(folder / "tokenizer")
    source = json_lines(folder / "chats.jsonl", chats(count))
    return prepared(folder / f"packing {packing}", source, spec, max_length=128, packing=packing)


def random_model(config: dict[str, Any]) -> nn.Module:
    """A model with random weights and without a cache, which would make it overlook positions."""
    settings = {**config, "use_cache": False}
    torch.manual_seed(0)
    made: nn.Module = AutoModelForCausalLM.from_config(AutoConfig.for_model(settings.pop("model_type"), **settings))
    return made


def phi3(original: int) -> nn.Module:
    """A model whose LongRoPE takes other factors for a whole batch from this number of positions on."""
    half = LLAMA["hidden_size"] // LLAMA["num_attention_heads"] // 2
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * half, "long_factor": [4.0] * half}
    lengths = {"max_position_embeddings": 256, "original_max_position_embeddings": original}
    tokens = {"pad_token_id": 0, "eos_token_id": 0}
    return random_model({**LLAMA, **tokens, **lengths, "model_type": "phi3", "rope_parameters": rope})


def mean_loss(model: nn.Module, data: PreparedData) -> float:
    """Mean loss over the tokens with loss of the whole training split."""
    rows = {name: torch.from_numpy(array) for name, array in data.rows("train", range(data.size("train"))).items()}
    labels = rows.pop("labels")
    with torch.no_grad():
        summed = loss_sum(model.double().eval()(**rows).logits, labels, "causal-lm")
    return float(summed) / count_targets(labels.numpy(), "causal-lm")


@pytest.mark.parametrize("name", KEEP_APART)
def test_packed_samples_have_the_loss_that_they_have_alone(name: str, tmp_path: Path) -> None:
    """The model passes the check, and its mean loss is that of the same samples one per row."""
    model, packed = random_model(KEEP_APART[name]), chat_data(tmp_path, packing=True)
    check_packing(model, packed)
    assert mean_loss(model, packed) == pytest.approx(mean_loss(model, chat_data(tmp_path, packing=False)), rel=1e-12)


@pytest.mark.parametrize("around", ["<bos> $A <eos>", "<bos> $A", "$A"])
def test_packed_texts_are_those_that_transformers_reads_alone(around: str, tmp_path: Path) -> None:
    """Each text of a row begins as its tokenizer begins a single one and ends with the end token, and the loss of the
    rows is what transformers computes of each text by itself: none of it is of a text's first token."""
    tokenizer, model = open_tokenizer(CAUSAL), random_model(LLAMA).double().eval()
    marks = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("<bos>", "<eos>") if token in around]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=around, special_tokens=marks)
    tokenizer.save_pretrained(tmp_path / "t")
    texts = [f"{number} " + "so " * (number % 9) for number in range(30)]
    source = json_lines(tmp_path / "r.jsonl", [{"text": text} for text in texts])
    spec = InputSpec(task="causal-lm", tokenizer=tmp_path / "t")
    data = prepared(tmp_path / "d", source, spec, max_length=64, packing=True)
    own, alone = AutoTokenizer.from_pretrained(tmp_path / "t"), dict[tuple[int, ...], float]()
    for text in texts:
        ids = own(text)["input_ids"]
        ids = torch.tensor([ids if ids[-1] == own.eos_token_id else [*ids, own.eos_token_id]])
        with torch.no_grad():
            alone[tuple(ids[0].tolist())] = float(model(input_ids=ids, labels=ids).loss) * (ids.shape[1] - 1)
    rows = data.rows("train", range(data.size("train")))
    packed = [
        tuple(ids[first:end].tolist())
        for ids, positions in zip(rows["input_ids"], rows["position_ids"], strict=True)
        for first, end in sample_spans(positions)
    ]
    assert len(packed) == 24 and set(packed) <= set(alone)
    total = mean_loss(model, data) * sum(len(text) - 1 for text in packed)
    assert total == pytest.approx(sum(alone[text] for text in packed), rel=1e-6)  # transformers' loss is in float32


@pytest.mark.parametrize("name", ["bloom", "mamba2", "lfm2", "qwen3_next"])
def test_a_model_that_lets_samples_see_each_other_is_refused(name: str, tmp_path: Path) -> None:
    """Bloom has no positions to begin anew, others carry a state or convolve over time; the refusal names the model
    and the setting."""
    model = random_model(MIXED.get(name) or {**small_config(name), "max_position_embeddings": 128})
    with pytest.raises(Refused, match=rf"packing does not suit {type(model).__name__}.*set data\.packing to false"):
        check_packing(model, chat_data(tmp_path, packing=True))


@pytest.mark.parametrize(("size", "passes"), [(1e-6, True), (1.0, False)])
def test_rounding_is_measured_where_a_sample_stands(size: float, passes: bool, tmp_path: Path) -> None:
    """Bug: Gemma 2 in float64, which makes its softmax in float32, was refused for 1e-7. What depends on the place in
    a row by as little as float32 rounds is no other sample; what depends on it by more is refused."""
    model: Any = random_model(LLAMA).double()

    def rounded(module: nn.Module, given: Any, output: torch.Tensor) -> torch.Tensor:
        places = torch.arange(output.shape[1], dtype=torch.float64) % 7 - 3
        return output * (1 + size * places[:, None] / 3)

    model.model.layers[1].mlp.register_forward_hook(rounded)
    packed = chat_data(tmp_path, packing=True)
    if passes:
        check_packing(model, packed)
    else:
        with pytest.raises(Refused, match="packing does not suit LlamaForCausalLM"):
            check_packing(model, packed)


def test_a_model_whose_positions_depend_on_the_longest_sample_of_a_batch_is_refused(tmp_path: Path) -> None:
    """Bug: Phi-3's LongRoPE takes other factors for all rows of a batch once one sample in it is longer than the
    original length, so that the shares of a group trained another model than one device."""
    answers = [f"{number:02} " + "ho" * (40 if number % 2 else 10) for number in range(16)]
    rows = [
        {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": answer}]}
        for answer in answers
    ]
    spec, source = chat_spec(tmp_path / "tokenizer"), json_lines(tmp_path / "chats.jsonl", rows)
    packed = prepared(tmp_path / "packed", source, spec, max_length=128, packing=True)
    longest = sorted(int(packed.rows("train", [row])["position_ids"].max()) + 1 for row in range(packed.size("train")))
    assert longest[0] < 64 < longest[-1], "short samples share rows, long ones do not"
    check_packing(phi3(longest[-1]), packed)
    with pytest.raises(Refused, match="packing does not suit Phi3ForCausalLM"):
        check_packing(phi3(longest[0]), packed)


@pytest.mark.parametrize(("tokens", "of_last"), [(16, 64), (64, 16)], ids=["a longer one", "a shorter one"])
def test_one_late_row_of_other_samples_is_enough(tokens: int, of_last: int, tmp_path: Path) -> None:
    """Bug: the first 256 rows alone were looked at. All samples on one side of the original length agree; one beyond it
    in the last row changes what the others are in its batch, and so is one below it changed by them."""
    data = chat_data(tmp_path, packing=True, count=1200)
    positions = np.load(data.folder / "train" / "position_ids.npy", mmap_mode="r+")
    positions[:] = np.arange(positions.shape[1]) % tokens
    assert len(positions) > 256
    check_packing(phi3(40), data)
    positions[-1] = np.arange(positions.shape[1]) % of_last
    with pytest.raises(Refused, match="packing does not suit Phi3ForCausalLM"):
        check_packing(phi3(40), data)
