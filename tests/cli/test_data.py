"""`fleetune data` shows the data of a run file as the model sees them."""

import json
from pathlib import Path

import pytest

from tests.support.cli.calls import Call, files

ROOT = Path(__file__).parents[2]
CHATS = ROOT / "docs" / "examples" / "chats.yaml"


@pytest.fixture(autouse=True)
def _in_the_project(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory is the project's, whose configs the example names."""
    monkeypatch.chdir(ROOT)


def test_chats_are_shown_with_what_carries_loss(call: Call, root: Path) -> None:
    """Packed chats: their number, lengths and waste, and the answer between its marks; no stage runs."""
    result = call("data", CHATS, "--samples", "1")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "29 samples in 10 sequences" in result.stdout and "wasted on padding: 6.2%" in result.stdout
    assert "<|im_start|>assistant\n⟦" in result.stdout and "<|im_end|>⟧" in result.stdout
    assert not files(root.parent)


def test_numbers_of_the_preview_are_those_of_the_arrays(call: Call) -> None:
    """Unpacked: the shares follow from lengths and rows, and the pieces of a sample make up its text."""
    changes = ("--set", "data.packing=false", "--set", "data.loss_on=all", "--json")
    found = json.loads(call("data", CHATS, *changes).stdout)
    train, sample = found["splits"][0], found["samples"][0]
    assert train["samples"] == train["rows"] == 29 and len(found["samples"]) == 3
    assert train["tokens"]["shortest"] <= train["tokens"]["median"] <= train["tokens"]["longest"] < 512
    assert 1 - train["tokens"]["longest"] / 512 < train["padding_share"] < 1 - train["tokens"]["shortest"] / 512
    assert sample["loss_tokens"] == sample["tokens"] - 1  # nothing predicts the first token
    assert "".join(piece["text"] for piece in sample["pieces"]).startswith("<|im_start|>user\n")


def test_images_and_classes_are_shown_plainly(call: Call) -> None:
    """Images have a shape and a class, and neither tokens nor loss."""
    found = json.loads(call("data", ROOT / "configs" / "runs" / "digits-vit.yaml", "--json").stdout)
    assert sum(found["splits"][0]["labels"].values()) == found["splits"][0]["samples"]
    assert found["splits"][0]["padding_share"] is None
    assert found["samples"][0]["shape"] == [1, 16, 16] and found["samples"][0]["label"] in "0123456789"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--samples", "-1"], "--samples -1: give a number of at least 0"),
        (["--set", "data.chat_template=lost.jinja"], "data.chat_template: 'lost.jinja' does not exist"),
        (["--set", "data.loss_on=answers"], "loss_on is 'answers'; allowed are completions, all"),
        (["--set", "data.chat_template=null"], "the tokenizer has no chat template"),
    ],
)
def test_what_cannot_be_shown_is_refused(call: Call, arguments: list[str], sentence: str) -> None:
    """One sentence on stderr names the value and what to do, with exit code 64 and no output."""
    result = call("data", CHATS, *arguments)
    assert result.exit_code == 64 and result.stdout == ""
    assert sentence in " ".join(result.stderr.split()) and "Traceback" not in result.stderr
