"""An exported model generates as its base does: with a cache, and with the base's own settings."""

import json
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GenerationConfig,
    models,
)

from benchmarks.families.small_configs import small_config
from fleetune.contracts.input_spec import InputSpec
from fleetune.contracts.run_config import Lora, ModelRequest
from fleetune.data.answer_ends import folder_ends
from fleetune.data.tokenization import open_tokenizer
from fleetune.models.export import copy_tokenizer, export_model
from fleetune.models.generation_settings import name_rope
from fleetune.models.init_weights import write_init_weights
from fleetune.models.rotary_settings import OLDER, rotary_places
from fleetune.models.source import configuration
from tests.support.data.samples import CAUSAL, json_lines, prepared, whole
from tests.support.training.model_families import ENCODER, LANGUAGE, TEXT

LLAMA = {"model_type": "llama", "num_key_value_heads": 1, "eos_token_id": 2, **ENCODER}
SEQ2SEQ = (
    {"vocab_size": 300, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2},
    {"vocab_size": 300, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 64,
     "decoder_ffn_dim": 64, "encoder_attention_heads": 2, "decoder_attention_heads": 2},
)  # fmt: skip
SETTINGS = {"eos_token_id": [2, 7], "num_beams": 2, "repetition_penalty": 1.3, "temperature": 0.6, "do_sample": False}
"""transformers itself would refuse to write a temperature where nothing is drawn."""


def base(folder: Path, settings: dict[str, Any] | None, use_cache: bool = True) -> ModelRequest:
    """A Llama of files, with generation settings in a file of their own or without."""
    request = ModelRequest(task=LANGUAGE, config=LLAMA)
    config = configuration(request)
    config.use_cache = use_cache
    torch.manual_seed(5)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    (folder / "generation_config.json").unlink()
    if settings is not None:
        (folder / "generation_config.json").write_text(json.dumps(settings))
    return ModelRequest(task=LANGUAGE, source=str(folder))


def exported(request: ModelRequest, folder: Path) -> Path:
    """Write the model as training started from it."""
    config = configuration(request, ("no", "yes"), 0)
    write_init_weights(config, request, 3, folder / "start")
    written = export_model(config, request, folder / "start", {}, folder)
    assert not getattr(config, "use_cache", False), "training goes on without a cache"
    return written


def test_a_model_has_the_generation_settings_of_its_base(tmp_path: Path) -> None:
    """Bug: they were replaced by some derived from the configuration: one end token instead of two, and no cache."""
    folder = exported(base(tmp_path / "base", SETTINGS), tmp_path)
    written = (folder / "generation_config.json").read_bytes()
    assert written == (tmp_path / "base" / "generation_config.json").read_bytes()
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    assert loaded.generation_config.eos_token_id == [2, 7] and loaded.config.use_cache
    plain = GenerationConfig(max_new_tokens=3, num_beams=1, return_dict_in_generate=True)
    made = loaded.generate(torch.tensor([[5, 6]]), generation_config=plain)
    assert made.past_key_values is not None


@pytest.mark.parametrize("use_cache", [True, False])
def test_the_cache_is_as_the_base_has_it(use_cache: bool, tmp_path: Path) -> None:
    """A base that says it has none keeps that, in a folder without generation settings as well."""
    folder = exported(base(tmp_path / "base", None, use_cache), tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    assert loaded.config.use_cache is use_cache
    assert loaded.generation_config.use_cache in (use_cache, None)
    assert loaded.generation_config.eos_token_id == 2


@pytest.mark.parametrize(
    "more, kept",
    [
        ({"num_beams": 4}, 4),
        ({"num_beams": 4, "temperature": 0.7}, 4),
        ({"num_beams": 4, "early_stopping": "x"}, None),
    ],
)
def test_older_bases_have_their_settings_in_the_configuration(
    more: dict[str, Any], kept: int | None, tmp_path: Path
) -> None:
    """They are kept as well, and so are contradictory ones (a temperature where nothing is drawn), which were lost
    with all others; where transformers does not load them, those of a new model are written, and no training is lost
    at its end."""
    request = base(tmp_path / "base", None)
    file = tmp_path / "base" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **more}))
    written = json.loads((exported(request, tmp_path) / "generation_config.json").read_text())
    assert (written.get("num_beams"), written["eos_token_id"]) == (kept, 2)
    assert written.get("temperature") == more.get("temperature")


@pytest.mark.parametrize("lora", [None, Lora(r=2, targets=("q_proj",))], ids=["whole", "adapter"])
def test_a_model_of_random_weights_generates_with_a_cache(lora: Lora | None, tmp_path: Path) -> None:
    """transformers' default; the base beside an adapter has it, too. A configuration that asks for none has none."""
    folder = exported(ModelRequest(task=LANGUAGE, config=LLAMA, lora=lora), tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "base" if lora else folder)
    assert loaded.config.use_cache and loaded.generation_config.use_cache is not False
    (tmp_path / "without").mkdir()
    folder = exported(ModelRequest(task=LANGUAGE, config={**LLAMA, "use_cache": False}), tmp_path / "without")
    assert AutoModelForCausalLM.from_pretrained(folder).config.use_cache is False


LINEAR = {"type": "linear", "factor": 2.0}
DEFAULT = {"rope_type": "default", "rope_theta": 70.0}
MODERN = {"global_rope_theta": 500.0, "local_rope_theta": 50.0}


OTHER = {"rope_type": "linear", "factor": 4.0}
NEOX = {"rotary_emb_base": 500, "rotary_pct": 0.5}


@pytest.mark.parametrize("lora", [None, Lora(r=2, targets="all-linear")], ids=["whole", "adapter"])
@pytest.mark.parametrize(
    ("kind", "own", "changes", "wanted"),
    [
        ("llama", {"rope_scaling": LINEAR}, {"rope_theta": 70.0}, {"rope_theta": 70.0, "rope_scaling": LINEAR}),
        ("llama", {"rope_scaling": LINEAR}, {"rope_parameters": DEFAULT}, {"rope_theta": 70.0}),
        ("llama", {"rope_theta": 5.0}, {"rope_scaling": OTHER}, {"rope_theta": 5.0, "rope_scaling": OTHER}),
        ("modernbert", MODERN, {"local_rope_theta": 70.0}, {**MODERN, "local_rope_theta": 70.0}),
        ("gpt_neox", NEOX, {}, NEOX),
    ],
)
def test_older_names_of_rotary_positions_tell_what_was_trained(
    kind: str, own: dict[str, Any], changes: dict[str, Any], wanted: dict[str, Any], lora: Lora | None, tmp_path: Path
) -> None:
    """Bug: they were left out of config.json, all of ModernBERT's and GPT-NeoX's, and of others what the request
    changes, so that transformers 4 and others took a default of theirs without a word. transformers 5 computes alike.
    """
    folder = tmp_path / "base"
    config = configuration(ModelRequest(task=TEXT, config=small_config(kind)))
    torch.manual_seed(5)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    plain = json.loads((folder / "config.json").read_text())
    del plain["rope_parameters"]
    (folder / "config.json").write_text(json.dumps({**plain, **own}))
    request = ModelRequest(task=TEXT, source=str(folder), config=changes, lora=lora)
    written = exported(request, tmp_path)
    found = json.loads((written / "config.json").read_text())
    assert {key: value for key, value in found.items() if key in {*OLDER, "rope_scaling"}} == wanted
    assert AutoConfig.from_pretrained(written).rope_parameters == configuration(request).rope_parameters


def test_every_family_names_its_rotary_positions_as_transformers_4(tmp_path: Path) -> None:
    """What any configuration class of transformers makes rotary parameters of is in config.json beside these, and
    changes nothing where it is read."""
    own, told = "convert_rope_params_to_dict", set[str]()
    for file in sorted(Path(models.__path__[0]).glob("*/configuration_*.py")):
        if f"def {own}" not in file.read_text():
            continue
        module = import_module(f"{models.__name__}.{file.parent.name}.{file.stem}")
        for kind in (each for each in vars(module).values() if own in vars(each if isinstance(each, type) else object)):
            for key in {each for each in vars(kind)[own].__code__.co_consts if isinstance(each, str)}:
                if not rotary_places(kind(), key):
                    continue
                told.add(key)
                made = kind(**{key: 0.5})
                folder = tmp_path / kind.__name__ / key
                made.save_pretrained(folder)
                name_rope(folder, None)
                assert json.loads((folder / "config.json").read_text())[key] == 0.5, kind
                assert kind.from_pretrained(folder).rope_parameters == made.rope_parameters, kind
    assert told == set(OLDER)


def test_an_adapter_is_loaded_by_transformers_alone(tmp_path: Path) -> None:
    """Bug: a configuration beside it made transformers look there for the weights of the base, which then lost its
    cache, too."""
    plain = base(tmp_path / "base", SETTINGS)
    request = ModelRequest(task=LANGUAGE, source=plain.source, lora=Lora(r=2, targets=("q_proj",)))
    folder = exported(request, tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    assert loaded.active_adapters() == ["default"] and loaded.config.use_cache
    assert any("lora_A" in name for name, _ in loaded.named_parameters())


def test_a_classifier_has_no_generation_settings(tmp_path: Path) -> None:
    """It generates nothing."""
    plain = base(tmp_path / "base", SETTINGS)
    folder = exported(ModelRequest(task=TEXT, source=plain.source), tmp_path)
    assert not (folder / "generation_config.json").exists()


@pytest.mark.parametrize("apart", [True, False])
def test_the_configuration_of_weights_that_are_trained_apart_ties_none(apart: bool, tmp_path: Path) -> None:
    """Bug: a folder whose configuration tied what its files held apart was exported with the same contradiction, so
    that a reader which goes by the configuration computed something else."""
    folder = tmp_path / "base"
    request = base(folder, None)
    config = configuration(request)
    config.tie_word_embeddings = not apart
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "tie_word_embeddings": True}))
    written = exported(request, tmp_path)
    assert json.loads((written / "config.json").read_text())["tie_word_embeddings"] is not apart
    assert ("lm_head.weight" in load_file(written / "model.safetensors")) == apart
    ours, theirs = (AutoModelForCausalLM.from_pretrained(each) for each in (written, folder))
    assert torch.equal(ours(torch.tensor([[5, 6]])).logits, theirs(torch.tensor([[5, 6]])).logits)


@pytest.mark.parametrize("kind", ["t5", "mt5", "bart"])
@pytest.mark.parametrize("apart", [True, False])
def test_an_output_layer_that_is_trained_apart_is_not_told_as_tied(kind: str, apart: bool, tmp_path: Path) -> None:
    """Bug: transformers 5 says of every T5 that its weights are tied, so that transformers 4 put the embedding in place
    of flan-t5's output layer. BART's encoder would lose its embedding if the setting said otherwise."""
    config = AutoConfig.for_model(kind, **SEQ2SEQ[kind == "bart"], tie_word_embeddings=kind == "bart" or not apart)
    torch.manual_seed(5)
    model = AutoModelForSeq2SeqLM.from_config(config)
    if apart:
        model.lm_head.weight = torch.nn.Parameter(torch.randn(300, 32))
    model.save_pretrained(tmp_path / "base")
    request = ModelRequest(task="seq2seq", source=str(tmp_path / "base"))
    written = exported(request, tmp_path)
    told = json.loads((written / "config.json").read_text()).get("tie_word_embeddings", True)
    assert told == (kind == "bart" or not apart)
    assert ("lm_head.weight" in load_file(written / "model.safetensors")) == apart
    ours, theirs = (AutoModelForSeq2SeqLM.from_pretrained(each).eval() for each in (written, tmp_path / "base"))
    given = {"input_ids": torch.tensor([[5, 6]]), "decoder_input_ids": torch.tensor([[2, 7]])}
    assert torch.equal(ours(**given).logits, theirs(**given).logits)


CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


HIDDEN = CHATML.replace("m.content", "m.content[:0]")


@pytest.mark.parametrize(
    ("template", "added", "said"),
    [
        (CHATML, ["<|im_end|>"], ""),
        (
            "{{ raise_exception('no') }}",
            [],
            "a question and its answer: the chat template does not take its messages (no)",
        ),
        ("{% for m in messages %}{{ m.content }}\n\n{% endfor %}", [], ""),
        (HIDDEN, [], "a question and its answer: the chat template does not write an answer as it is given"),
        (None, [], ""),
    ],
    ids=["chatml", "raises", "blank", "hides", "none"],
)
def test_a_model_ends_an_answer_as_its_template_does(
    template: str | None, added: list[str], said: str, tmp_path: Path
) -> None:
    """Bug: a Llama that was trained by ChatML ran on behind its answers, because its settings were its base's alone;
    and a template that does not tell what ends an answer was passed over without a word."""
    folder, notes = exported(base(tmp_path / "base", SETTINGS), tmp_path), list[str]()
    spec = InputSpec(task=LANGUAGE, tokenizer=None, pretrained=False, vocab_size=None)
    tokenizer = open_tokenizer(spec)
    tokenizer.add_tokens(["<|im_start|>", "<|im_end|>"], special_tokens=True)
    tokenizer.add_tokens(["\n\n"])
    tokenizer.chat_template = template
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    copy_tokenizer(tmp_path / "tokenizer", folder, partial(folder_ends, note=notes.append))
    written = json.loads((folder / "generation_config.json").read_text())
    ends = [2, 7, *tokenizer.convert_tokens_to_ids(added)]
    assert written == {**SETTINGS, "eos_token_id": ends}
    assert AutoModelForCausalLM.from_pretrained(folder).generation_config.eos_token_id == ends
    assert len(notes) == bool(said) and all(said in each for each in notes)


@pytest.mark.parametrize(
    ("known", "found"), [(7, [7, 2]), ([7, 2], [7, 2]), (None, 2)], ids=["another", "both", "none"]
)
@pytest.mark.parametrize("template", [None, CHATML])
def test_a_model_ends_a_text_as_training_ends_it(known: Any, found: Any, template: str | None, tmp_path: Path) -> None:
    """Bug: where there was no chat template, a model that had learned to end texts with its tokenizer's end token wrote
    on behind it, since the settings of its base did not have that token."""
    folder = exported(base(tmp_path / "base", {"eos_token_id": known}), tmp_path)
    data = prepared(
        tmp_path / "data", json_lines(tmp_path / "rows.jsonl", [{"text": f"a{number}"} for number in range(9)]), CAUSAL
    )
    assert data.tokenizer is not None and set(whole(data, "train")["labels"][:, 3]) == {2}
    tokenizer = AutoTokenizer.from_pretrained(data.tokenizer)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(data.tokenizer)
    copy_tokenizer(data.tokenizer, folder, partial(folder_ends, note=pytest.fail))
    assert AutoModelForCausalLM.from_pretrained(folder).generation_config.eos_token_id == found


@pytest.mark.filterwarnings("ignore::FutureWarning")  # PEFT asks transformers by an older name
@pytest.mark.parametrize("settings", [SETTINGS, None], ids=["own file", "configuration"])
def test_an_adapters_readme_ends_answers_and_leaves_the_base_as_it_is(
    settings: dict[str, Any] | None, tmp_path: Path
) -> None:
    """Bug: the model that it loaded had the end tokens of the base alone, and, where the tokenizer knows more tokens
    than the base, random rows for these, which changed the probabilities of all others."""
    request = replace(base(tmp_path / "base", settings), lora=Lora(r=2, targets=("q_proj",)))
    folder = exported(request, tmp_path)
    tokenizer = open_tokenizer(InputSpec(task=LANGUAGE, tokenizer=None, pretrained=False, vocab_size=None))
    tokenizer.add_tokens(["<|im_start|>", "<|im_end|>", *(f"<more {number}>" for number in range(100))])
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    copy_tokenizer(tmp_path / "tokenizer", folder, partial(folder_ends, note=pytest.fail))
    assert len(AutoTokenizer.from_pretrained(folder)) == len(tokenizer) > ENCODER["vocab_size"]
    code = (folder / "README.md").read_text().split("```python\n")[1].split("```")[0]
    found: dict[str, Any] = {}
    exec(code.replace('"adapter"', repr(str(folder))), found)
    model = found["model"]
    assert model.get_input_embeddings().num_embeddings == ENCODER["vocab_size"]
    before = [2, 7] if settings else [2]
    assert model.generation_config.eos_token_id == [*before, tokenizer.convert_tokens_to_ids("<|im_end|>")]


def test_a_tokenizer_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    """Bug: any error was taken for the template's own, and the model was handed over as if it had none."""
    folder = exported(base(tmp_path / "base", SETTINGS), tmp_path)
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "tokenizer.json").write_text("{}")
    told = list[str]()
    copy_tokenizer(tmp_path / "tokenizer", folder, partial(folder_ends, note=told.append))
    assert "do not have what the tokenizer or its chat template puts after answers" in told[0]
