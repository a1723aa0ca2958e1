"""A run's receipt ties its model to what it came from; what was handed over is proved by it."""

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner, Result

from fleetune.contracts.run_config import Lora, ModelRequest
from fleetune.store import RunRecord, Store
from fleetune.store.runs import EVALUATION, ONLY
from flows.cli.app import app
from flows.hand_over.export import export
from flows.hand_over.trained_run import trained_run
from flows.receipt import write_receipt
from tests.support.flows.hand_over.runs import WHOLE, base_folder, plain, stored_run


def verified(store: Store, *asked: str) -> Result:
    """The end of `fleetune verify`."""
    return CliRunner().invoke(app, ["verify", *asked, "--root", store.root])


def sha256(path: Path) -> str:
    """Of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def flip(path: Path) -> None:
    """Change the last bit of a file."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def rewritten(path: Path, old: str, new: str) -> None:
    """Replace words of a text file."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunRecord]:
    """A folder with a base, and a store with a run that trained an adapter on it."""
    folder = tmp_path_factory.mktemp("run")
    return folder, stored_run(folder, base_folder(folder / "base"))[1]


@pytest.fixture
def run(made: tuple[Path, RunRecord], request: pytest.FixtureRequest) -> tuple[Path, Store, RunRecord]:
    """The same, put back as it was afterwards: its base has one place."""
    folder, record = made
    kept = folder.with_name(f"{folder.name}-kept")
    shutil.copytree(folder, kept)

    def restore() -> None:
        shutil.rmtree(folder)
        kept.rename(folder)

    request.addfinalizer(restore)
    return folder, Store(folder / "runs"), record


def test_a_receipt_names_what_the_run_came_from_and_made(run: tuple[Path, Store, RunRecord]) -> None:
    """Digests are those of the files themselves; each link's hash covers the link before it."""
    folder, store, record = run
    receipt = plain(folder / "runs" / "runs" / record.id / "receipt.json")
    links = {link["name"]: link["digests"] for link in receipt["links"]}
    assert list(links) == ["base", "data", "code", "config", "plans", "commits", "weights", "evaluation"]
    assert links["base"]["model.safetensors"] == sha256(folder / "base" / "model.safetensors")
    checkpoint = store.folder("checkpoint", record.outputs["checkpoint"])
    name = "adapter/adapter_model.safetensors"
    assert links["weights"] == {"checkpoint": checkpoint.name, name: sha256(checkpoint / name)}
    assert links["data"] == {"data": record.outputs["data"]}
    assert links["evaluation"]["input checkpoint"] == checkpoint.name
    before = ""
    for link in receipt["links"]:
        text = json.dumps([before, link["name"], link["digests"]], sort_keys=True, ensure_ascii=False)
        before = hashlib.sha256(text.encode()).hexdigest()
        assert link["chain"] == before
    ended = verified(store, record.id)
    assert ended.exit_code == 0 and f"its receipt holds: {', '.join(links)}" in ended.stdout


@pytest.mark.parametrize(
    ("link", "said"),
    [
        ("base", "model.safetensors is not what the run was trained on"),
        ("base", "config.json is not what the run was trained on"),
        ("data", "data artifact is corrupt"),
        ("code", "the key of stage prepare is not that of its record"),
        ("config", "stage prepare ran with another training.rounds"),
        ("plans", "plan artifact is corrupt"),
        ("commits", "metrics artifact is corrupt"),
        ("weights", "checkpoint artifact is corrupt"),
        ("evaluation", "evaluation artifact is corrupt"),
        ("evaluation", "the receipt itself was changed"),
    ],
)
def test_the_first_link_that_breaks_is_named(run: tuple[Path, Store, RunRecord], link: str, said: str) -> None:
    """One bit of the base, an artifact, a setting in the record or the receipt is found, and ends with 64."""
    folder, store, record = run
    root = folder / "runs"
    artifact = {"data": "data", "plans": "plan", "commits": "metrics", "weights": "checkpoint"}.get(link, link)
    if link == "base":
        name = said.partition(" ")[0]
        with (folder / "base" / name).open("ab") as file:
            file.write(b" ")
    elif link == "code":
        rewritten(root / "keys" / f"{record.stages[0].key}.json", '"package.torch": "1"', '"package.torch": "2"')
    elif link == "config":
        rewritten(root / "runs" / record.id / "run.json", '"rounds": 3', '"rounds": 4')
    elif "itself" in said:
        receipt = root / "runs" / record.id / "receipt.json"
        rewritten(receipt, plain(receipt)["links"][-1]["chain"], "0" * 64)
    else:
        place = root / "artifacts" / artifact / record.outputs[artifact]
        flip(next(path for path in sorted(place.rglob("*")) if path.is_file() and path.name != "manifest.json"))
    ended = verified(store, record.id)
    assert ended.exit_code == 64 and f"the chain of {record.id} breaks at {link}: " in ended.stderr
    assert said in ended.stderr


@pytest.mark.parametrize(
    ("kind", "link"),
    [("data", "data"), ("plan", "plans"), ("metrics", "commits"), ("checkpoint", "weights"), ("model", "base")],
)
@pytest.mark.parametrize("receipt", [True, False])
def test_a_run_beside_the_pipeline_is_verified_with_what_it_read(
    run: tuple[Path, Store, RunRecord], kind: str, link: str, receipt: bool
) -> None:
    """Bug: of an evaluation and of a single stage only what it made was hashed: it was told to be whole on data and
    weights that were changed."""
    folder, store, record = run
    for number, beside in enumerate((EVALUATION, ONLY), 2):
        side = replace(record, id=f"numbers-{number}", kind=beside, stages=record.stages[-1:])
        store.runs.save(side)
        if receipt:
            write_receipt(store, side)
        ended = verified(store, side.id)
        assert ended.exit_code == 0 and "every file of its 6 artifacts" in ended.stdout, ended.stderr
    place = folder / "runs" / "artifacts" / kind / record.outputs[kind]
    flip(next(path for path in sorted(place.rglob("*")) if path.is_file() and path.name != "manifest.json"))
    for number in (2, 3):
        ended = verified(store, f"numbers-{number}")
        assert ended.exit_code == 64, ended.stdout
        assert f"the chain of numbers-{number} breaks at {link}: " in ended.stderr and "is corrupt" in ended.stderr


@pytest.mark.parametrize(
    ("kind", "link"),
    [
        ("data", "data"),
        ("plan", "plans"),
        ("metrics", "commits"),
        ("checkpoint", "weights"),
        ("evaluation", "evaluation"),
    ],
)
def test_another_sound_artifact_in_the_record_breaks_the_chain(
    run: tuple[Path, Store, RunRecord], kind: str, link: str
) -> None:
    """A record that names another artifact of the store, whose files are whole, is found by the chain alone."""
    folder, store, record = run
    other, digest = folder / "other", record.outputs[kind]
    shutil.copytree(store.folder(kind, digest), other)
    (other / "manifest.json").unlink()
    (other / "more").write_text("more")
    put = store.put(kind, other, stage_key="0" * 64, inputs={})
    rewritten(folder / "runs" / "runs" / record.id / "run.json", digest, put)
    ended = verified(store, record.id)
    assert ended.exit_code == 64 and f"the chain of {record.id} breaks at {link}: " in ended.stderr


def test_a_receipt_of_an_older_version_holds_where_settings_were_added(run: tuple[Path, Store, RunRecord]) -> None:
    """Bug: `weight_decay_on`, which this version fills in for a run that has none, broke the link `config` of runs with
    a weight decay. The link has the digest of the config as it was recorded."""
    folder, store, record = run
    decaying = replace(record.config, training=replace(record.config.training, weight_decay=0.1))
    store.runs.save(replace(record, config=decaying))
    file = folder / "runs" / "runs" / record.id / "run.json"
    recorded = plain(file)
    assert recorded["config"]["training"].pop("weight_decay_on") == "weights"
    file.write_text(json.dumps(recorded))
    write_receipt(store, store.runs.load(record.id))
    text = json.dumps(recorded["config"], sort_keys=True, ensure_ascii=False)
    links = {link["name"]: link["digests"] for link in plain(file.with_name("receipt.json"))["links"]}
    assert links["config"]["config"] == hashlib.sha256(text.encode()).hexdigest()
    assert verified(store, record.id).exit_code == 0
    rewritten(file, '"weight_decay": 0.1', '"weight_decay": 0.2')
    assert f"the chain of {record.id} breaks at config: config is" in verified(store, record.id).stderr


def check_links(store: Store, folder: Path, elsewhere: Path) -> None:
    """Bug: a linked folder of files, which transformers reads, was passed over; and a link's content may change."""
    elsewhere.mkdir()
    (elsewhere / "tool_use.jinja").write_text("{{ messages }}")
    linked = folder / "additional_chat_templates"
    for target in (elsewhere, elsewhere / "nothing"):
        linked.symlink_to(target)
        assert "additional_chat_templates: link was added" in verified(store, str(folder)).stderr
        linked.unlink()
    (folder / "config.json").rename(elsewhere / "config.json")
    (folder / "config.json").symlink_to(elsewhere / "config.json")
    assert "config.json: is not a plain file" in verified(store, str(folder)).stderr
    (elsewhere / "config.json").replace(folder / "config.json")


@pytest.mark.parametrize("kind", ["whole", "adapter", "merged", "whole, merged"])
def test_an_exported_folder_is_proved_to_be_what_was_trained(kind: str, tmp_path: Path) -> None:
    """A whole model, an adapter, and one that was merged, which is merged again; weights that differ in one value and
    a pickle that was added are not."""
    adapter = kind in ("adapter", "merged")
    store, record = stored_run(tmp_path, base_folder(tmp_path / "base") if adapter else WHOLE)
    folder = export(trained_run(store, record.id), tmp_path / "out", merge="merged" in kind)
    ended = verified(store, str(folder))
    assert ended.exit_code == 0, ended.stderr
    assert f"every file of its model is what run {record.id} trained" in ended.stdout
    (folder / "pytorch_model.bin").write_bytes(b"")
    assert "pytorch_model.bin: file was added" in verified(store, str(folder)).stderr
    (folder / "pytorch_model.bin").unlink()
    check_links(store, folder, tmp_path / "elsewhere")
    weights = folder / ("adapter_model.safetensors" if kind == "adapter" else "model.safetensors")
    tensors = load_file(weights)
    next(iter(tensors.values())).view(-1)[0] += 1
    save_file(tensors, weights, {"format": "pt"})
    ended = verified(store, str(folder))
    assert ended.exit_code == 64 and f"{weights.name}: its content is another" in ended.stderr


def test_an_upgrade_of_transformers_breaks_no_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a merged folder was no longer what its run trained, for the version that transformers writes into its
    settings. Other settings are still compared, and both versions are named beside them, since one may have them
    otherwise."""
    sizes = {"vocab_size": 264, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
    config = {"model_type": "llama", **sizes, "num_attention_heads": 2, "num_key_value_heads": 2}
    request = ModelRequest(task="causal-lm", config=config, lora=Lora(r=2, targets=("q_proj",)))
    store, record = stored_run(tmp_path, request)
    folder = export(trained_run(store, record.id), tmp_path / "out", merge=True)
    here = plain(folder / "config.json")["transformers_version"]
    for module in ("configuration_utils", "generation.configuration_utils"):
        monkeypatch.setattr(f"transformers.{module}.__version__", "9.9.9")
    ended = verified(store, str(folder))
    assert ended.exit_code == 0, ended.stderr
    rewritten(
        folder / "config.json", '"model_type"', '"rope_scaling": null, "model_type"'
    )  # as versions of ours repeat what a base has
    assert verified(store, str(folder)).exit_code == 0
    for name, old, new, key in (
        ("config.json", '"num_hidden_layers": 2', '"num_hidden_layers": 4', "num_hidden_layers"),
        ("config.json", '"rope_scaling": null', '"rope_scaling": {"type": "linear", "factor": 8}', "rope_parameters"),
        ("config.json", '"rms_norm_eps"', '"sliding_window": null, "rms_norm_eps"', "sliding_window"),
        ("generation_config.json", "{", '{"seed": 1,', "seed"),
    ):
        rewritten(folder / name, old, new)
        ended = verified(store, str(folder))
        both = (
            f"{name}: other settings ({key}), but transformers {here} wrote it, and 9.9.9 is here: verify with {here}"
        )
        assert ended.exit_code == 64 and both in ended.stderr
        rewritten(folder / name, new, old)


def test_a_folder_of_another_run_is_refused(run: tuple[Path, Store, RunRecord], tmp_path: Path) -> None:
    """A card whose receipt names a run of this store, but not what that run has, and a folder without a receipt."""
    _, store, record = run
    folder = export(trained_run(store, record.id), tmp_path / "out", merge=False)
    digest = record.outputs["data"]
    rewritten(folder / "README.md", f'"data": "{digest}"', f'"data": "{digest[::-1]}"')
    assert "its receipt is not that of run numbers-1 in this store" in verified(store, str(folder)).stderr
    (folder / "README.md").write_text("# mine\n")
    assert "it has no receipt; export the model again, or give a run" in verified(store, str(folder)).stderr


def test_a_base_that_is_gone_is_told(
    run: tuple[Path, Store, RunRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: the hub was asked for the base's path, and all ended with 75, to be tried again. What needs no base holds
    with a note; an adapter is not merged again without it."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    folder, store, record = run
    adapter, merged = (
        export(trained_run(store, record.id), tmp_path / str(merge), merge=merge) for merge in (False, True)
    )
    (folder / "base").rename(tmp_path / "moved")
    note = f"the base itself cannot be compared with the receipt (model: source {folder / 'base'} is gone"
    for name in (record.id, str(adapter)):
        ended = verified(store, name)
        assert ended.exit_code == 0 and note in " ".join(ended.stdout.split()), ended.stderr
    ended = verified(store, str(merged))
    assert ended.exit_code == 64 and f"source {folder / 'base'} is gone" in ended.stderr
