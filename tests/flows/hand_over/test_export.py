"""What a run hands over: folders that transformers and PEFT load alone, with a card; and nothing where that fails."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from huggingface_hub.errors import LocalTokenNotFoundError
from huggingface_hub.utils import filter_repo_objects
from typer.testing import CliRunner

from benchmarks.families.small_configs import small_config
from fleetune.contracts.run_config import Lora, ModelRequest
from fleetune.errors import Refused, TryAgain
from fleetune.models.source import configuration
from fleetune.store import Store
from flows.cli.app import app
from flows.hand_over.export import CONVERTER, export, push, to_gguf
from flows.hand_over.model_card import model_card
from flows.hand_over.trained_run import trained_run
from tests.support.drawing.contents import content
from tests.support.filesystem.synced import recorded
from tests.support.flows.hand_over.runs import ADAPTED, WHOLE, base_folder, plain, run_of, stored_run
from tests.support.launching.freezing import HASTY, WORDS

GPT2 = {"model_type": "gpt2", "vocab_size": 264, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2}
DINO_LORA = Lora(r=2, targets=("q_proj",))
IDS = {"input_ids": torch.arange(5, 17).reshape(2, 6)}


@pytest.fixture
def of_files(tmp_path: Path) -> ModelRequest:
    """LoRA on a base of files."""
    return base_folder(tmp_path / "base")


@pytest.mark.parametrize("kind", ["random base", "base of files"])
def test_a_merged_model_is_loaded_by_transformers_alone(kind: str, tmp_path: Path, of_files: ModelRequest) -> None:
    """Its logits are those of base and adapter together, its labels and its tokenizer are the run's."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    found, model = run_of(tmp_path, ADAPTED if kind == "random base" else of_files)
    folder = export(found, tmp_path / "out", merge=True)
    loaded = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        assert torch.allclose(loaded(**IDS).logits, model(**IDS).logits, rtol=1e-5, atol=1e-6)
    assert loaded.config.id2label == {0: "odd", 1: "even", 2: "prime"}
    assert AutoTokenizer.from_pretrained(folder)("odd")["input_ids"]
    assert not [name for name in loaded.state_dict() if "lora" in name]


@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize(("umask", "folders", "files"), [(0o077, 0o700, 0o600), (0o002, 0o775, 0o664)])
def test_who_may_read_an_export_is_for_the_umask_to_say(
    umask: int, folders: int, files: int, merge: bool, tmp_path: Path, of_files: ModelRequest
) -> None:
    """Bug: everybody could read the folder, whatever the umask, and none but the owner some files of a merged model."""
    found, _ = run_of(tmp_path, of_files)
    before = os.umask(umask)
    try:
        folder = export(found, tmp_path / "out", merge=merge)
    finally:
        os.umask(before)
    paths = [folder, *folder.rglob("*")]
    assert {path.stat().st_mode & 0o777 for path in paths if path.is_dir()} == {folders}
    assert {path.stat().st_mode & 0o777 for path in paths if path.is_file()} == {files}


def test_what_cannot_be_checked_is_told(
    tmp_path: Path, of_files: ModelRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    """A base of which an older run kept no digests goes into the merged model with a note beside what is printed."""
    found, _ = run_of(tmp_path, of_files)
    (found.model / "base.json").unlink()
    capsys.readouterr()
    export(found, tmp_path / "out", merge=True)
    assert "note: model: whether the files of" in capsys.readouterr().err


@pytest.mark.parametrize("merge", [False, True])
def test_a_classifier_that_transformers_lacks_is_loaded_by_the_code_of_its_card(merge: bool, tmp_path: Path) -> None:
    """DINOv3: plain transformers loads the backbone, the card's lines add the head, and the best label is the run's."""
    request = ModelRequest(
        task="image-classification", config=small_config("dinov3_vit"), lora=DINO_LORA if merge else None
    )
    found, model = run_of(tmp_path, request)
    folder = export(found, tmp_path / "out", merge=merge)
    text = (folder / "README.md").read_text()
    code = text.partition("```python\n")[2].partition("```")[0].replace("this folder", str(folder))
    processed = 'AutoImageProcessor.from_pretrained(folder)(image, return_tensors="pt")'
    assert processed in code, "its own processor needs torchvision, which is not installed"
    for number in range(3):
        pixels = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(number))
        told: dict[str, Any] = {"given": {"pixel_values": pixels}}
        exec(code.replace(processed, "given"), told)
        with torch.no_grad():
            assert told["label"] == model.config.id2label[int(model(pixels).logits.argmax())]


@pytest.mark.filterwarnings("ignore::FutureWarning")  # PEFT asks transformers by an older name
def test_an_adapter_is_loaded_by_peft(tmp_path: Path, of_files: ModelRequest) -> None:
    """Its logits on its base are the run's; the card says how."""
    from peft import AutoPeftModelForSequenceClassification

    found, model = run_of(tmp_path, of_files)
    folder = export(found, tmp_path / "out", merge=False)
    loaded = AutoPeftModelForSequenceClassification.from_pretrained(folder, num_labels=3).eval()
    with torch.no_grad():
        assert torch.allclose(loaded(**IDS).logits, model(**IDS).logits, rtol=1e-5, atol=1e-6)
    assert "model = PeftModel.from_pretrained(base, folder)" in (folder / "README.md").read_text()


def test_an_adapter_of_random_weights_is_handed_over_merged_only(tmp_path: Path) -> None:
    """Nobody else could load it."""
    found, _ = run_of(tmp_path, ADAPTED)
    with pytest.raises(Refused, match="belongs to random weights, which nobody else has; give --merge"):
        export(found, tmp_path / "out", merge=False)
    assert not (tmp_path / "out").exists()


def test_a_merged_model_generates_as_its_base_does(tmp_path: Path) -> None:
    """Bug: it had no cache. The base's own settings are copied, and so they are where a whole model is handed over."""
    from transformers import AutoModelForCausalLM

    base, settings = tmp_path / "base", '{"eos_token_id": [2, 7], "num_beams": 2}'
    config = configuration(ModelRequest(task="causal-lm", config=GPT2))
    config.use_cache = True
    AutoModelForCausalLM.from_config(config).save_pretrained(base)
    (base / "generation_config.json").write_text(settings)
    for lora in (Lora(r=2, targets=("c_attn",)), None):
        (tmp_path / str(lora is None)).mkdir()
        found, _ = run_of(tmp_path / str(lora is None), ModelRequest(task="causal-lm", source=str(base), lora=lora))
        folder = export(found, tmp_path / f"out {lora is None}", merge=True)
        assert (folder / "generation_config.json").read_text() == settings
        assert AutoModelForCausalLM.from_pretrained(folder).config.use_cache


def test_a_whole_model_is_handed_over_without_its_base(tmp_path: Path) -> None:
    """Bug: `--merge`, and with it `--gguf`, failed where the folder of the base was gone, for the older names of its
    rotary positions, which the trained model's own folder has. They are not read of what has come in its place."""
    from transformers import AutoModelForCausalLM

    base, task = tmp_path / "base", "causal-lm"
    config = configuration(ModelRequest(task=task, config=small_config("llama")))
    AutoModelForCausalLM.from_config(config).save_pretrained(base)
    settings = plain(base / "config.json")
    settings.pop("rope_parameters")
    (base / "config.json").write_text(json.dumps({**settings, "rope_theta": 500.0}))
    found, _ = run_of(tmp_path, ModelRequest(task=task, source=str(base)))
    (base / "config.json").write_text(json.dumps({**settings, "rope_theta": 7.0}))
    wanted = plain(export(found, tmp_path / "changed", merge=True) / "config.json")
    assert wanted["rope_theta"] == 500.0
    base.rename(tmp_path / "moved")
    assert plain(export(found, tmp_path / "gone", merge=True) / "config.json") == wanted


def test_an_adapter_of_a_tied_weight_is_not_merged(tmp_path: Path) -> None:
    """Bug: one of GPT-2's head was merged into its embedding as well, and the exported model computed something else.
    It is refused with the way out, and leaves nothing."""
    causal = ModelRequest(task="causal-lm", config=GPT2, lora=Lora(r=2, targets=("lm_head",)))
    found, _ = run_of(tmp_path, causal)
    with pytest.raises(Refused, match="lm_head, whose weight another layer shares.*export the adapter without --merge"):
        export(found, tmp_path / "out", merge=True)
    assert not (tmp_path / "out").exists()


def test_the_card_is_one_the_hub_reads(tmp_path: Path) -> None:
    """Its head parses, and it has scores, data, settings and whom to cite, but no path of this machine."""
    found, _ = run_of(tmp_path, WHOLE)
    card = ModelCard.load(export(found, tmp_path / "out", merge=False) / "README.md")
    assert card.data.library_name == "transformers" and card.data.pipeline_tag == "text-classification"
    (result,) = card.data.eval_results
    assert (result.metric_type, result.metric_value, result.dataset_name) == ("accuracy", 0.75, "data.jsonl")
    for text in ("| accuracy | 0.25 | 0.75 | higher |", "27 samples to train on, 13 to test on", "| rounds | 3 |"):
        assert text in card.text
    assert "asteroid" in card.text and "@inproceedings{ye2024asteroid" in card.text
    assert str(tmp_path) not in card.content


@pytest.mark.parametrize(
    ("rounds", "chosen", "said"),
    [
        (3, None, "| rounds | 3 |"),
        (2, None, "| rounds | 2 of 3 |"),
        (3, 1, "| rounds | 1 of 3, the state with the lowest held-out loss |"),
    ],
)
def test_the_card_says_how_long_the_model_was_trained(
    rounds: int, chosen: int | None, said: str, tmp_path: Path
) -> None:
    """Where it ended early, or an earlier state was taken, it is not the rounds of the config."""
    found, _ = run_of(tmp_path, WHOLE)
    made = content().training
    assert made is not None
    training = replace(made, rounds=made.rounds[:rounds], result_rounds=chosen)
    assert said in model_card(replace(found, training=training), "")


def test_nothing_is_overwritten_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that holds something stays as it is; a full disk leaves no half of a model."""
    found, _ = run_of(tmp_path, WHOLE)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("kept")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(Refused, match="is the working directory, which a new folder cannot replace; give a folder in"):
        export(found, Path(), merge=False)
    with monkeypatch.context() as mounted:
        mounted.setattr(Path, "is_mount", lambda self: self == tmp_path / "here")
        monkeypatch.chdir(tmp_path)
        with pytest.raises(Refused, match="is a mounted folder, which a new folder cannot replace"):
            export(found, tmp_path / "here", merge=False)
    with pytest.raises(Refused, match="already holds something; give a new or empty folder with --to"):
        export(found, tmp_path / "out", merge=False)
    assert os.listdir(tmp_path / "out") == ["mine"]
    before = sorted(os.listdir(tmp_path))

    def full(*_: Any, **__: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)  # the card comes last
    with pytest.raises(OSError, match="No space left"):
        export(found, tmp_path / "new", merge=False)
    assert sorted(os.listdir(tmp_path)) == before


def test_a_folder_is_on_disk_when_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut after the command has ended leaves no model of zeros: files and folder are flushed, then the name."""
    found, _ = run_of(tmp_path, WHOLE)
    done = recorded(monkeypatch)
    export(found, tmp_path / "out", merge=False)
    named = done.index(f"=> {tmp_path / 'out'}")
    assert {path.name for path in (tmp_path / "out").iterdir()} <= {Path(path).name for path in done[:named]}
    assert done[named + 1 :] == [str(tmp_path)]


def test_a_gguf_file_is_what_the_converter_makes_of_the_merged_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without llama.cpp's converter the way out is said; one that fails or freezes leaves no file.

    A stand-in converts here. Bug: one that waited, for a disk or a program that it had started, was taken for frozen.
    """
    found, _ = run_of(tmp_path, ModelRequest(task="causal-lm", config=GPT2))
    tools = tmp_path / "tools"
    tools.mkdir()
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    with pytest.raises(Refused, match=f"needs llama.cpp's {CONVERTER} on the PATH"):
        to_gguf(found, tmp_path / "m.gguf")
    (tools / CONVERTER).write_text('#!/bin/sh\nset -e\ntest -f "$1/model.safetensors"\nprintf GGUF > "$3"\n')
    (tools / CONVERTER).chmod(0o755)
    assert to_gguf(found, tmp_path / "m.gguf").read_bytes() == b"GGUF"
    (tools / CONVERTER).write_text("#!/bin/sh\necho no such architecture >&2\nexit 1\n")
    with pytest.raises(Refused, match=r"failed \(no such architecture\)"):
        to_gguf(found, tmp_path / "n.gguf")
    for frozen in ("kill -STOP $$", "sh -c 'kill -STOP $$'"):
        (tools / CONVERTER).write_text(f"#!/bin/sh\n{frozen}\n")
        with pytest.raises(TryAgain, match=WORDS):
            to_gguf(found, tmp_path / "n.gguf", HASTY)
    assert not list(tmp_path.glob("n.gguf*"))
    (tools / CONVERTER).write_text('#!/bin/sh\nsleep 1.5\nprintf GGUF > "$3"\nprintf "\\377" >&2\n')
    assert to_gguf(found, tmp_path / "n.gguf", HASTY).read_bytes() == b"GGUF"


class Hub:
    """Stand-in for the parts of `huggingface_hub.HfApi` that are used, with one repository in memory."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.private: dict[str, bool] = {}
        self.files: dict[str, bytes] = {}

    def create_repo(self, repository: str, exist_ok: bool, private: bool) -> Any:
        """As the hub does it."""
        if self.error:
            raise self.error
        assert exist_ok
        self.private.setdefault(repository, private)
        return SimpleNamespace(repo_id=repository)

    def whoami(self) -> Any:
        """As the hub does it."""
        if isinstance(self.error, LocalTokenNotFoundError):
            raise self.error

    def list_repo_files(self, repo_id: str) -> list[str]:
        """As the hub does it."""
        return sorted(self.files)

    def upload_folder(self, folder_path: str, repo_id: str, delete_patterns: Sequence[str] = ()) -> Any:
        """As the hub does it."""
        for name in [*filter_repo_objects(self.files, allow_patterns=[*delete_patterns])]:
            del self.files[name]
        sent = [path for path in Path(folder_path).rglob("*") if path.is_file()]
        self.files.update({path.relative_to(folder_path).as_posix(): path.read_bytes() for path in sent})
        return SimpleNamespace(commit_url=f"hub/{repo_id}/commit/1")


def test_a_folder_is_pushed_to_a_private_repository(tmp_path: Path) -> None:
    """What stands in the folder is uploaded; troubles are told apart, and name the way on."""
    (tmp_path / "config.json").write_text("{}")
    hub = Hub()
    assert push(tmp_path, "me/numbers", hub) == "hub/me/numbers/commit/1"
    assert (hub.private, hub.files) == ({"me/numbers": True}, {"config.json": b"{}"})
    with pytest.raises(Refused, match="needs a token of the hub; run `hf auth login`, or set HF_TOKEN"):
        push(tmp_path, "me/numbers", Hub(LocalTokenNotFoundError("no token")))
    with pytest.raises(TryAgain, match=r"the hub did not take it \(no route\)"):
        push(tmp_path, "me/numbers", Hub(ConnectionError("no route")))


def test_a_push_that_failed_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: one without a token was exported first, and the same command then refused, as its folder held something.
    What is pushed from a folder that is there is what the command asks for, and proven."""
    store, _ = stored_run(tmp_path, base_folder(tmp_path / "base"))
    hub, out = Hub(LocalTokenNotFoundError("no token")), tmp_path / "out"
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: hub)
    command = ["export", "latest", "--to", str(out), "--push", "me/numbers", "--root", str(store.root)]
    ended = CliRunner().invoke(app, command)
    assert ended.exit_code == Refused.exit_code and "run `hf auth login`, or set HF_TOKEN" in ended.stderr
    assert not out.exists()
    hub.error = ConnectionError("no route")
    ended = CliRunner().invoke(app, command)
    assert ended.exit_code == TryAgain.exit_code and "the same command pushes it from there" in ended.stderr
    hub.error = None
    assert "already holds something" in CliRunner().invoke(app, [*command, "--merge"]).stderr and not hub.files
    weights = (out / "adapter_model.safetensors").read_bytes()
    (out / "adapter_model.safetensors").write_bytes(weights[:-1])
    assert "already holds something" in CliRunner().invoke(app, command).stderr and not hub.files
    (out / "adapter_model.safetensors").write_bytes(weights)
    ended = CliRunner().invoke(app, command)
    assert ended.exit_code == 0 and hub.files["adapter_model.safetensors"] == weights


def test_a_repository_holds_the_pushed_model_alone(
    tmp_path: Path, of_files: ModelRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: the files of an earlier push stayed, so that others loaded a merged model with the old adapter on it, or old
    weights. What loaders read is that of the folder; the files of its owner stay, also by a like name below it."""
    found, _ = run_of(tmp_path, of_files)
    folders = [
        export(found, tmp_path / name, merge=name == "merged") for name in ("adapter", "merged", "adapter again")
    ]
    mine = {".gitattributes", "LICENSE", "loss.png", "assets/adapter_config.json", "my_config.json", "onnx/model.onnx"}
    hub = Hub()
    hub.files = dict.fromkeys([*mine, "model-00001-of-00002.safetensors", "model.safetensors.index.json"], b"")
    for folder in folders:
        push(folder, "me/numbers", hub)
        own = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        assert set(hub.files) == mine | own, folder.name
    assert [line.rpartition(": ")[2] for line in capsys.readouterr().err.splitlines() if "removed" in line] == [
        "model-00001-of-00002.safetensors, model.safetensors.index.json",
        "adapter_config.json, adapter_model.safetensors",
        "model.safetensors",
    ]


def test_a_run_that_was_not_trained_is_refused(tmp_path: Path) -> None:
    """The names of runs are those of the other commands."""
    with pytest.raises(Refused, match="run 'latest': there is none"):
        trained_run(Store(tmp_path), "latest")
    store = Store(tmp_path)
    store.runs.save(run_of(tmp_path / "w", WHOLE)[0].run)
    with pytest.raises(Refused, match=r"run numbers-1 has no checkpoint: it is done; name a run that was trained"):
        trained_run(store, "numbers-1")
