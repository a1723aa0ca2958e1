"""Training starts from what transformers loads of the same folder, or the folder is refused by name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from fleetune.contracts import json_io
from fleetune.contracts.run_config import Lora, ModelRequest
from fleetune.errors import Refused
from fleetune.evaluation.trained_model import write_merged
from fleetune.models.export import export_model
from fleetune.models.init_weights import INIT_WEIGHTS, initial_model, write_init_weights
from fleetune.models.skeleton import saved_configuration
from fleetune.models.source import configuration
from fleetune.preparation.start_comparison import compare_start

Tensors = dict[str, torch.Tensor]
LANGUAGE, PAIRS, TEXT = "causal-lm", "seq2seq", "sequence-classification"
PROJECTION = "model.layers.0.self_attn.q_proj.weight"
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 60}
IDS = torch.arange(3, 23)[None]


def llama(folder: Path, **settings: Any) -> LlamaForCausalLM:
    """Save a small Llama of random weights, and return it."""
    torch.manual_seed(0)
    given = {**SMALL, "intermediate_size": 64, "num_key_value_heads": 2, "tie_word_embeddings": False, **settings}
    model = LlamaForCausalLM(LlamaConfig(**given)).eval()
    model.save_pretrained(folder)
    return model


def bert(folder: Path, kind: Any = BertForSequenceClassification) -> nn.Module:
    """Save a small BERT of random weights, and return it."""
    torch.manual_seed(0)
    model: Any = kind(BertConfig(**SMALL, intermediate_size=64)).eval()
    model.save_pretrained(folder)
    whole: nn.Module = model
    return whole


def change(folder: Path, change: Callable[[Tensors], Tensors] = lambda tensors: tensors, **settings: Any) -> None:
    """Rewrite the tensors and the configuration of a folder."""
    file, config = folder / "model.safetensors", folder / "config.json"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})
    config.write_text(json_io.text({**json_io.parse_plain(config.read_bytes(), "config.json"), **settings}))


def start(folder: Path, task: str = LANGUAGE) -> tuple[nn.Module, tuple[str, ...]]:
    """The model that training starts from, and what is told of it."""
    request = ModelRequest(task=task, source=str(folder))
    config = configuration(request, ("a", "b") if task == TEXT else ())
    notes = write_init_weights(config, request, 3, folder / "drawn" / INIT_WEIGHTS)
    return initial_model(config, request, folder / "drawn" / INIT_WEIGHTS), notes


def assert_same(ours: nn.Module, theirs: nn.Module) -> None:
    """Every tensor, those of tied names too, has the same bits."""
    found, wanted = ours.state_dict(), theirs.state_dict()
    assert found.keys() == wanted.keys()
    assert not [name for name, tensor in wanted.items() if not torch.equal(found[name], tensor)]


def in_fp8(tensors: Tensors) -> Tensors:
    """Each projection in 8 bits, with a scale for every block of 16 by 16, which the bare codes are far from."""
    found: Tensors = {}
    for name, tensor in tensors.items():
        found[name] = tensor
        if name.endswith("_proj.weight"):
            rows, columns = tensor.shape
            blocks = tensor.reshape(rows // 16, 16, columns // 16, 16)
            scale = blocks.abs().amax((1, 3)) / 448
            codes = (blocks / scale[:, None, :, None]).to(torch.float8_e4m3fn)
            found[name], found[f"{name}_scale_inv"] = codes.reshape(rows, columns), scale
    return found


FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [16, 16]}


def test_weights_in_blocks_of_fp8_start_as_transformers_dequantises_them(tmp_path: Path) -> None:
    """The start is codes times scales, as from_pretrained gives on a CPU, and the trained model is written plain."""
    plain = llama(tmp_path)
    change(tmp_path, in_fp8, quantization_config=FP8)
    ours, _ = start(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    scale = stored[f"{PROJECTION}_scale_inv"].repeat_interleave(16, 0).repeat_interleave(16, 1)
    assert torch.equal(ours.get_parameter(PROJECTION), stored[PROJECTION].float() * scale)
    assert_same(ours, AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32))
    request = ModelRequest(task=LANGUAGE, source=str(tmp_path))
    written = export_model(configuration(request), request, tmp_path / "drawn" / INIT_WEIGHTS, {}, tmp_path / "out")
    assert "quantization_config" not in (written / "config.json").read_text()
    again = AutoModelForCausalLM.from_pretrained(written, dtype=torch.float32)
    assert_same(again, ours)
    assert (again(IDS).logits - plain(IDS).logits).abs().max() < 0.1


@pytest.mark.filterwarnings("ignore::FutureWarning")  # PEFT asks transformers by an older name
def test_a_merged_adapter_of_quantised_weights_is_written_plain(tmp_path: Path) -> None:
    """transformers would quantise again on saving what it dequantised, which config.json no longer says: the merged
    folder computes what was trained, but for rounding in the sum of two matrices, and names rotary positions as before.
    """
    llama(tmp_path / "base")
    change(tmp_path / "base", in_fp8, quantization_config=FP8, rope_theta=10000.0)
    request = ModelRequest(
        task=LANGUAGE, source=str(tmp_path / "base"), lora=Lora(r=2, alpha=4, targets=("q_proj", "down_proj"))
    )
    folder = tmp_path / "start"
    configuration(request).save_pretrained(folder / "model")
    config = saved_configuration(folder / "model")
    write_init_weights(config, request, 3, folder / INIT_WEIGHTS)
    model: Any = initial_model(config, request, folder / INIT_WEIGHTS)
    trained = {name: torch.randn(p.shape) / 10 for name, p in model.named_parameters() if p.requires_grad}
    model.load_state_dict(trained, strict=False)
    export_model(config, request, folder / INIT_WEIGHTS, trained, tmp_path / "checkpoint")
    write_merged(tmp_path / "checkpoint", folder, request, tmp_path / "merged", print)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    assert (theirs(IDS).logits - model(input_ids=IDS).logits).abs().max() < 1e-5
    assert not [name for name in load_file(tmp_path / "merged" / "model.safetensors") if "scale" in name]
    assert json.loads((tmp_path / "merged" / "config.json").read_text())["rope_theta"] == 10000.0


def test_experts_in_mxfp4_start_as_transformers_dequantises_them(tmp_path: Path) -> None:
    """Blocks of 32 numbers of 4 bits with a shared exponent become the numbers that from_pretrained makes of them."""
    torch.manual_seed(0)
    config = GptOssConfig(
        **{**SMALL, "num_hidden_layers": 1}, intermediate_size=32, num_key_value_heads=2, head_dim=16,
        num_local_experts=2, num_experts_per_tok=1, layer_types=["full_attention"],
    )  # fmt: skip
    GptOssForCausalLM(config).save_pretrained(tmp_path)

    def packed(tensors: Tensors) -> Tensors:
        found = {}
        for name, tensor in tensors.items():
            if name.endswith(("gate_up_proj", "down_proj")):
                experts, columns, rows = tensor.shape
                found[f"{name}_blocks"] = torch.randint(0, 256, (experts, rows, columns // 32, 16)).to(torch.uint8)
                found[f"{name}_scales"] = torch.randint(118, 124, (experts, rows, columns // 32)).to(torch.uint8)
            else:
                found[name] = tensor
        return found

    change(tmp_path, packed, quantization_config={"quant_method": "mxfp4"})
    ours, _ = start(tmp_path)
    assert_same(ours, AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32))


@pytest.mark.parametrize(
    "method",
    [
        {"quant_method": "gptq", "bits": 4},
        {"quant_method": "awq", "bits": 4},
        {"quant_method": "bitsandbytes", "load_in_8bit": True},
        {"quant_method": "compressed-tensors", "format": "int-quantized"},
        {"quant_method": "unheard-of"},
    ],
    ids=lambda method: str(method["quant_method"]),
)
def test_quantised_weights_that_cannot_be_read_as_plain_ones_are_refused(method: Any, tmp_path: Path) -> None:
    """Bug: their codes were trained on as if they were weights. The method is named, before anything is prepared."""
    llama(tmp_path)
    change(tmp_path, quantization_config=method)
    with pytest.raises(Refused, match=rf"holds weights quantised by '{method['quant_method']}', which cannot be read"):
        configuration(ModelRequest(task=LANGUAGE, source=str(tmp_path)))


def test_an_empty_quantization_config_says_nothing(tmp_path: Path) -> None:
    """Bug: `{}`, which says that nothing is quantised, ended as a traceback; the weights are read, and written."""
    plain = llama(tmp_path)
    change(tmp_path, quantization_config={})
    ours, notes = start(tmp_path)
    assert_same(ours, plain)
    request = ModelRequest(task=LANGUAGE, source=str(tmp_path))
    config = configuration(request)
    drawn = tmp_path / "drawn" / INIT_WEIGHTS
    written = export_model(config, request, drawn, {}, tmp_path / "out")
    assert_same(AutoModelForCausalLM.from_pretrained(written), plain)
    assert notes == () and compare_start(config, request, drawn) is None


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_numbers_of_eight_bits_without_scales_are_told(dtype: torch.dtype, tmp_path: Path) -> None:
    """Bug: they trained as they are, without a word, whatever scales they once had. transformers loads the same."""
    llama(tmp_path)
    change(tmp_path, lambda tensors: {**tensors, PROJECTION: (tensors[PROJECTION] * 99).to(dtype)})
    ours, notes = start(tmp_path)
    assert_same(ours, LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32))
    (said,) = notes
    assert PROJECTION in said and str(dtype)[6:] in said and "without scales" in said


def in_int8(tensors: Tensors) -> Tensors:
    """A projection as whole numbers, without its scale."""
    return {**tensors, PROJECTION: (tensors[PROJECTION] * 1000).to(torch.int8)}


def in_renamed_fp8(tensors: Tensors) -> Tensors:
    """As above, with scales named as programs that draw images name them."""
    return {name.replace("weight_scale_inv", "scale_weight"): tensor for name, tensor in in_fp8(tensors).items()}


@pytest.mark.parametrize(
    ("codes", "named"),
    [
        (in_fp8, r"model\.layers\.0\.mlp\.down_proj\.weight_scale_inv"),
        (in_int8, r"model\.layers\.0\.self_attn\.q_proj\.weight"),
        (in_renamed_fp8, r"model\.layers\.0\.mlp\.down_proj\.scale_weight"),
        (lambda tensors: {**tensors, f"{PROJECTION[:-6]}SCB": torch.ones(32)}, r"q_proj\.SCB"),
        (lambda tensors: {**tensors, f"{PROJECTION[:-6]}qweight": torch.ones(4, 32)}, r"q_proj\.qweight"),
    ],
    ids=["scales", "whole numbers", "other names", "bitsandbytes", "gptq"],
)
def test_codes_of_which_the_configuration_says_nothing_are_refused(codes: Any, named: str, tmp_path: Path) -> None:
    """Bug: weights were read without the scales that lie beside them in the file."""
    llama(tmp_path)
    change(tmp_path, codes)
    with pytest.raises(Refused, match=rf"{named} belongs to a quantised weight .*no quantization_config"):
        start(tmp_path)


def test_a_head_of_its_own_is_not_tied_by_the_configuration(tmp_path: Path) -> None:
    """Bug: a head that the file holds beside other embeddings was replaced by them, since config.json ties the two;
    transformers does not tie them."""
    plain = llama(tmp_path)
    change(tmp_path, tie_word_embeddings=True)
    ours, notes = start(tmp_path)
    assert torch.equal(ours(IDS).logits, plain(IDS).logits)
    assert_same(ours, AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32))
    assert len(notes) == 1 and "lm_head.weight with other values than model.embed_tokens.weight" in notes[0]


def test_a_head_with_the_values_of_the_embeddings_is_tied_to_them(tmp_path: Path) -> None:
    """A file that holds both, as old ones do, is the tied model, and nothing is told."""
    llama(tmp_path)
    change(
        tmp_path,
        lambda tensors: {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()},
        tie_word_embeddings=True,
    )
    ours, notes = start(tmp_path)
    assert ours.get_parameter("lm_head.weight") is ours.get_parameter("model.embed_tokens.weight")
    assert_same(ours, AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32))
    assert notes == ()


@pytest.mark.parametrize("held", [["lm_head"], ["encoder.embed_tokens"], ["decoder.embed_tokens", "lm_head"]])
def test_tied_weights_are_read_under_whichever_name_the_file_has(held: list[str], tmp_path: Path) -> None:
    """Bug: embeddings that the file holds under a tied name were drawn at random."""
    torch.manual_seed(0)
    given = {"vocab_size": 60, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4}
    T5ForConditionalGeneration(T5Config(**given, decoder_start_token_id=0)).save_pretrained(tmp_path)

    def renamed(tensors: Tensors) -> Tensors:
        shared = tensors.pop("shared.weight")
        return {**tensors, **{f"{name}.weight": shared.clone() for name in held}}

    change(tmp_path, renamed)
    ours, notes = start(tmp_path, PAIRS)
    assert_same(ours, AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype=torch.float32))
    assert ours.get_parameter("shared.weight") is ours.get_parameter("lm_head.weight")
    assert notes == ()


def test_a_t5_with_a_head_of_its_own_and_no_shared_embeddings_starts_as_it_is(tmp_path: Path) -> None:
    """Encoder and decoder share the embeddings that the file names twice, and the head is another, as transformers
    loads them."""
    torch.manual_seed(0)
    given = {"vocab_size": 60, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4}
    T5ForConditionalGeneration(T5Config(**given, decoder_start_token_id=0)).save_pretrained(tmp_path)

    def apart(tensors: Tensors) -> Tensors:
        shared = tensors.pop("shared.weight")
        embeddings = {f"{part}.embed_tokens.weight": shared.clone() for part in ("encoder", "decoder")}
        return {**tensors, **embeddings, "lm_head.weight": torch.randn(60, 32)}

    change(tmp_path, apart)
    ours, notes = start(tmp_path, PAIRS)
    theirs = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert_same(ours, theirs)
    given_both = {"input_ids": IDS, "decoder_input_ids": IDS}
    assert torch.equal(ours(**given_both).logits, theirs(**given_both).logits)
    assert len(notes) == 1 and "lm_head.weight with other values than shared.weight" in notes[0]


def test_a_tensor_that_the_body_lacks_is_refused_by_name(tmp_path: Path) -> None:
    """Bug: it was drawn at random without a word, which only the task's own head may be, and that is told."""
    own = bert(tmp_path)
    change(tmp_path, lambda tensors: {n: t for n, t in tensors.items() if not n.startswith("classifier")})
    ours, notes = start(tmp_path, TEXT)
    assert torch.equal(ours.get_parameter("bert.pooler.dense.weight"), own.get_parameter("bert.pooler.dense.weight"))
    assert len(notes) == 1 and "classifier.bias and 1 more tensor(s) of BertForSequenceClassification start" in notes[0]
    lost = "bert.encoder.layer.1.output.dense.weight"
    change(tmp_path, lambda tensors: {name: tensor for name, tensor in tensors.items() if name != lost})
    with pytest.raises(Refused, match=rf"has no tensor for {lost} \(1 in all\) of BertForSequenceClassification"):
        start(tmp_path, TEXT)


def test_a_language_model_s_head_of_another_size_is_refused(tmp_path: Path) -> None:
    """Bug: it was drawn at random without a word, although a language model is given no new one."""
    llama(tmp_path)
    change(tmp_path, lambda tensors: {**tensors, "lm_head.weight": torch.zeros(61, 32)})
    with pytest.raises(Refused, match=r"lm_head\.weight is \[61, 32\], but the model's lm_head\.weight is \[60, 32\]"):
        start(tmp_path)


@pytest.mark.parametrize("name", [PROJECTION, "lm_head.weight"])
def test_tensors_that_were_not_gathered_are_refused_as_such(name: str, tmp_path: Path) -> None:
    """Bug: of a checkpoint of ZeRO-3 without its numbers, the advice was to change the model to fit."""
    llama(tmp_path)
    change(tmp_path, lambda tensors: {**tensors, name: torch.zeros(0)})
    with pytest.raises(Refused, match=rf"{name} is \[0\], without a number: .* ZeRO-3 .*zero_to_fp32"):
        start(tmp_path)


def test_what_a_new_task_draws_and_leaves_is_told(tmp_path: Path) -> None:
    """A masked language model has no pooler and no classifier, and a classifier has no place for its head: the one is
    drawn and the other left, as transformers does and reports."""
    bert(tmp_path, BertForMaskedLM)
    _, (drawn, left) = start(tmp_path, TEXT)
    assert "bert.pooler.dense.bias and 3 more tensor(s) of BertForSequenceClassification start from random" in drawn
    assert "cls.predictions.bias and" in left and "have no place in BertForSequenceClassification" in left
