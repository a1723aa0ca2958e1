"""The border of a prompt and its completion: a token that lies across it is told, as no prompt alone has it."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from fleetune.contracts.input_spec import InputSpec
from tests.support.data.samples import CAUSAL, json_lines, prepared


@pytest.fixture
def merging(tmp_path: Path) -> InputSpec:
    """Requirements of a model whose tokenizer has a token for a space and yes."""
    words = ["<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "\u0120y", "\u0120ye", "\u0120yes"]
    merges = [("\u0120", "y"), ("\u0120y", "e"), ("\u0120ye", "s")]
    core = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=merges))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>", pad_token="<eos>")
    made.save_pretrained(tmp_path / "t")
    return InputSpec(task="causal-lm", tokenizer=tmp_path / "t", vocab_size=300)


@pytest.mark.parametrize("marked", [False, True], ids=["no marks", "marks around each text"])
def test_a_token_across_the_border_is_told(marked: bool, merging: InputSpec, tmp_path: Path) -> None:
    """Bug: of a prompt that ends with a space, a token was learned that no prompt alone leads to, without a word."""
    spec = CAUSAL if marked else merging
    across = [{"prompt": f"Q{n}: ", "completion": "yes"} for n in range(6)]
    apart = [{"prompt": f"Q{n}:", "completion": " yes"} for n in range(6)] + [{"prompt": "", "completion": "yes"}]
    for number, (rows, told) in enumerate([(across + apart, not marked), (apart, False)]):
        data = prepared(tmp_path / f"d{number}", json_lines(tmp_path / f"{number}.jsonl", rows), spec)
        said = "in 6 of 13 samples a token joins the end of the prompt and the beginning of the completion"
        assert any(note.startswith(said) for note in data.info.notes) == told, data.info.notes
