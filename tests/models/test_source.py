"""The source of a model and the digest of its content: files in subfolders, and hub names whose commits change."""

import json
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import HfHubHTTPError
from transformers import AutoConfig

from benchmarks.families.small_configs import small_config
from fleetune.contracts.run_config import Lora, ModelRequest
from fleetune.errors import Refused, TryAgain
from fleetune.models.earlier_run import is_continued
from fleetune.models.export import export_model
from fleetune.models.init_weights import write_init_weights
from fleetune.models.model_inputs import input_spec
from fleetune.models.skeleton import base_skeleton
from fleetune.models.source import (
    configuration,
    content_digest,
    content_marks,
    pin_revision,
    source_folder,
    with_local_source,
)
from fleetune.models.weight_files import weight_files
from tests.support.training.model_families import BY_NAME

BERT = {
    "model_type": "bert", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 64, "vocab_size": 50,
}  # fmt: skip
NAME = "owner/tiny"
FIRST, SECOND = "a" * 40, "b" * 40


def saved(folder: Path, seed: int, shards: str = "") -> Path:
    """Save a model folder with random weights, in the subfolder `shards` if given."""
    request = ModelRequest(task="sequence-classification", config=BERT)
    config = configuration(request, ("no", "yes"))
    folder.mkdir(parents=True)
    write_init_weights(config, request, seed, folder / "model.safetensors")
    config.save_pretrained(folder)
    if shards:
        (folder / shards).mkdir()
        (folder / "model.safetensors").rename(folder / shards / "one.safetensors")
        named = {"anything": f"{shards}/one.safetensors"}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": named}))
    return folder


class Hub:
    """The cache of a hub that cannot be reached: commits of one model, and the commit of its branch."""

    def __init__(self, cache: Path) -> None:
        self._folder = cache / f"models--{NAME.replace('/', '--')}"
        (self._folder / "refs").mkdir(parents=True)

    def add(self, commit: str, seed: int) -> None:
        """Add a snapshot of other weights, to which main points from now on."""
        saved(self._folder / "snapshots" / commit, seed)
        self.point(commit)

    def point(self, commit: str, branch: str = "main") -> None:
        """Move a branch to a commit."""
        (self._folder / "refs" / branch).parent.mkdir(parents=True, exist_ok=True)
        (self._folder / "refs" / branch).write_text(commit)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """A hub with two commits of one model; main is the first."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    made = Hub(tmp_path / "hub")
    made.add(SECOND, 2)
    made.add(FIRST, 1)
    return made


def test_numbers_are_classes_of_a_model_that_is_trained_on(tmp_path: Path) -> None:
    """Labels 0 and 1 are the first of three named classes where a run's own model goes on or the request names them,
    and not those of a base, which may be ImageNet's."""
    for place, config, own in (
        ("base", None, False),
        ("named", {"id2label": {0: "no", 1: "yes"}}, True),
        ("artifacts/checkpoint/0a1b/model", None, True),
    ):
        source = str(saved(tmp_path / place, 1))
        assert input_spec(ModelRequest(task="sequence-classification", source=source, config=config)).numbered == own
    for card, own in (("# A model", False), ("# A model\n\n## Receipt\n", True)):  # of an exported folder
        (tmp_path / "base" / "README.md").write_text(card)
        assert input_spec(ModelRequest(task="sequence-classification", source=str(tmp_path / "base"))).numbered == own


def test_a_model_that_a_run_pushed_to_the_hub_goes_on(hub: Hub, tmp_path: Path) -> None:
    """Bug: its card was not fetched, so that its classes, and what it was trained on, counted as those of a base."""
    pinned = pin_revision(ModelRequest(task="sequence-classification", source=NAME))
    assert not is_continued(pinned) and not input_spec(pinned).numbered
    card = tmp_path / "hub" / f"models--{NAME.replace('/', '--')}" / "snapshots" / FIRST / "README.md"
    card.write_text("# A model\n\n## Receipt\n")
    assert is_continued(pinned) and input_spec(pinned).numbered
    for source, revision in ((NAME, SECOND), (str(tmp_path), "main"), ("package:numpy", "main")):
        assert not is_continued(ModelRequest(task="sequence-classification", source=source, revision=revision))


def test_a_head_with_a_teacher_has_its_classes(tmp_path: Path) -> None:
    """Bug: a distilled DeiT that went on from its own run got its classes in another order, or lost some."""
    deit = {**BY_NAME["vit"].config, "model_type": "deit", "architectures": ["DeiTForImageClassificationWithTeacher"]}
    config = {**deit, "id2label": {0: "dog", 1: "ant"}, "label2id": {"dog": 0, "ant": 1}}
    (tmp_path / "deit").mkdir()
    (tmp_path / "deit" / "config.json").write_text(json.dumps(config))
    request = ModelRequest(task="image-classification", source=str(tmp_path / "deit"))
    assert input_spec(request).labels == ("dog", "ant")


def test_weights_in_a_subfolder_are_part_of_the_digest(tmp_path: Path) -> None:
    """Bug: other weights under the same index had the same digest, and the training of the old ones was reused."""
    folder = saved(tmp_path / "model", 1, shards="shards")
    request = ModelRequest(task="sequence-classification", source=str(folder))
    assert weight_files(folder) == (folder / "shards" / "one.safetensors",)
    before = content_digest(request)
    content = bytearray((folder / "shards" / "one.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "shards" / "one.safetensors").write_bytes(content)
    changed = content_digest(request)
    assert changed != before
    (folder / "shards").rename(folder / ".kept")
    (folder / "shards").symlink_to(folder / ".kept")
    assert content_digest(request) == changed, "a link is read like a folder"


def test_what_is_never_read_is_no_part_of_the_digest(tmp_path: Path) -> None:
    """A git folder and pickles beside the weights do not change the digest; a link to the folder itself ends."""
    folder = saved(tmp_path / "model", 1)
    request = ModelRequest(task="sequence-classification", source=str(folder))
    before = content_digest(request)
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("x")
    (folder / "pytorch_model.bin").write_bytes(b"x")
    assert content_digest(request) == before
    (folder / "chat_template.jinja").write_text("x")
    (folder / "circle").symlink_to(folder)
    assert content_digest(request) != before


def test_a_name_on_the_hub_is_resolved_once(hub: Hub) -> None:
    """Bug: a branch that moved during a run gave later stages and workers other weights than were hashed."""
    request = ModelRequest(task="sequence-classification", source=NAME)
    run = pin_revision(request)
    before = content_digest(run)
    assert run.revision == FIRST and pin_revision(run) == run
    hub.point(SECOND)
    assert (source_folder(run) or Path()).name == FIRST and content_digest(run) == before
    assert with_local_source(run) == ModelRequest(task="sequence-classification", source=str(source_folder(run)))
    moved = pin_revision(request)
    assert moved.revision == SECOND and content_digest(moved) != before


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("source", [NAME, "package:tinymodel", "folder"])
def test_a_file_that_was_touched_shows_wherever_the_model_lies(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: what lies in the hub's cache or a package was hashed at a run's start and never looked at again, so that
    weights changed meanwhile were trained on under the old ones' digest, and its receipt said otherwise."""
    saved(tmp_path / "packages" / "tinymodel", 3)
    (tmp_path / "packages" / "tinymodel" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "packages")
    folder = str(saved(tmp_path / "folder", 3)) if source == "folder" else source
    request = pin_revision(ModelRequest(task="sequence-classification", source=folder))
    before, marks = content_digest(request), content_marks(request)
    assert content_marks(request) == marks
    file = (source_folder(request) or Path()) / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert content_marks(request) != marks and content_digest(request) != before


def test_what_others_put_into_a_snapshot_is_no_part_of_the_digest(hub: Hub) -> None:
    """Bug: `hf download` of the same model while a run was at work added a README and weights of other programs, and
    what had been trained was given up."""
    request = pin_revision(ModelRequest(task="sequence-classification", source=NAME))
    before, marks = content_digest(request), content_marks(request)
    snapshot = source_folder(request) or Path()
    for name in ("README.md", "consolidated.safetensors", "original/params.safetensors"):
        (snapshot / name).parent.mkdir(exist_ok=True)
        (snapshot / name).write_text("more")
    assert (content_digest(request), content_marks(request)) == (before, marks)
    (snapshot / "generation_config.json").write_text("{}")
    assert content_digest(request) != before


def test_the_weights_of_an_adapter_count_wherever_it_lies(tmp_path: Path) -> None:
    """Bug: of an adapter in a folder of somebody's `snapshots`, another training of it was not noticed."""
    adapter = tmp_path / "snapshots" / "last"
    adapter.mkdir(parents=True)
    (adapter / "adapter_config.json").write_text("{}")
    (adapter / "adapter_model.safetensors").write_text("one")
    source = str(saved(tmp_path / "base", 1))
    request = ModelRequest(task="sequence-classification", source=source, lora=Lora(start=str(adapter), targets=("q",)))
    before = content_digest(request)
    (adapter / "adapter_model.safetensors").write_text("two")
    assert content_digest(request) != before


@pytest.mark.parametrize(
    ("fails", "kind", "says"),
    [
        (
            ConnectionError("no route\nto host"),
            TryAgain,
            rf"owner/tiny at main \(no route\); .* model.revision={FIRST}",
        ),
        (503, TryAgain, r"owner/tiny at main \(busy\)"),
        (401, Refused, r"'owner/tiny' is neither a folder here nor readable from the hub \(busy\)"),
    ],
)
def test_the_commit_of_the_cache_is_not_taken_for_that_of_the_hub(
    fails: Exception | int, kind: type[Exception], says: str, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: where the hub did not answer, its client took the branch of the cache, which may be older, without a word.

    A commit that the cache has needs no hub.
    """
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    response: Any = SimpleNamespace(status_code=fails, headers={}, request=None)
    error = HfHubHTTPError("busy", response=response) if isinstance(fails, int) else fails

    def unanswered(*asked: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(HfApi, "model_info", unanswered)
    monkeypatch.setattr(HfApi, "list_repo_tree", unanswered)
    with pytest.raises(kind, match=says):
        pin_revision(ModelRequest(task="causal-lm", source=NAME))
    pinned = ModelRequest(task="causal-lm", source=NAME, revision=FIRST)
    assert (source_folder(pinned) or Path()).name == FIRST


@pytest.mark.parametrize("source", ["/data/base", "./base", "../base", "~/base", "data/models/base"])
def test_a_folder_that_is_gone_is_not_asked_of_the_hub(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: the hub was asked for a path, and its silence, which was to be tried again, hid that the folder is gone."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    request = ModelRequest(task="causal-lm", source=source)
    for reader in (source_folder, pin_revision):
        with pytest.raises(Refused, match=f"source {source} is gone: there is no such folder; put it back"):
            reader(request)


def test_a_name_that_the_hub_cannot_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: it was to be tried again."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with pytest.raises(Refused, match="source 'owner/my model' is neither a folder here nor readable from the hub"):
        pin_revision(ModelRequest(task="causal-lm", source="owner/my model"))


def test_where_a_hub_name_may_have_other_weights_is_told(hub: Hub) -> None:
    """Bug: of a name that has pytorch_model.bin alone, the only advice was to save a model that nobody has opened."""
    folder = source_folder(ModelRequest(task="sequence-classification", source=NAME)) or Path()
    (folder / "model.safetensors").unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["BertForSequenceClassification"]}))
    convert = r"transformers\.BertForSequenceClassification\.from_pretrained\('owner/tiny'\)\.save_pretrained\(FOLDER\)"
    with pytest.raises(Refused, match=rf"owner/tiny's page .* model\.revision: refs/pr/N .*{convert}"):
        weight_files(folder)


def test_a_pull_request_is_a_revision(hub: Hub) -> None:
    """Its commit is taken as that of a branch."""
    hub.point(SECOND, "refs/pr/1")
    request = ModelRequest(task="causal-lm", source=NAME, revision="refs/pr/1")
    assert pin_revision(request).revision == SECOND


@pytest.mark.parametrize("names", ["one", "shards", "own"])
def test_what_is_read_is_fetched_and_no_more(
    names: str, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: Marian's, BERTweet's and ProphetNet's tokenizers stayed on the hub, and weights that other programs have
    beside those of transformers (consolidated.safetensors, original/) were fetched and hashed, too."""
    there = saved(tmp_path / "there", 1, shards="deep" if names == "shards" else "")
    wanted = {"config.json", "source.spm", "target.spm", "bpe.codes", "prophetnet.tokenizer", "README.md"}
    if names == "own":
        (there / "model.safetensors").rename(there / "consolidated.safetensors")
        settings = json.loads((there / "config.json").read_text())
        (there / "config.json").write_text(json.dumps({**settings, "transformers_weights": "consolidated.safetensors"}))
    weights = {
        "one": {"model.safetensors"},
        "shards": {"model.safetensors.index.json", "deep/one.safetensors"},
        "own": {"consolidated.safetensors"},
    }[names]
    (there / "original").mkdir()
    for name in (*wanted, "consolidated.safetensors", "original/model.safetensors", "model.fp16.safetensors", "x.bin"):
        if not (there / name).exists():
            (there / name).write_bytes(b"x")
    here = tmp_path / "here" / FIRST

    def fetch(repo_id: str, allow_patterns: list[str], **options: object) -> str:
        for path in sorted(path for path in there.rglob("*") if path.is_file()):
            name = path.relative_to(there).as_posix()
            if any(fnmatch(name, pattern) for pattern in allow_patterns):
                (here / name).parent.mkdir(parents=True, exist_ok=True)
                (here / name).write_bytes(path.read_bytes())
        return str(here)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    folder = source_folder(pin_revision(ModelRequest(task="sequence-classification", source=NAME)))
    assert folder == here
    assert {path.relative_to(here).as_posix() for path in here.rglob("*") if path.is_file()} == wanted | weights
    assert {path.relative_to(here).as_posix() for path in weight_files(here)} == weights - {
        "model.safetensors.index.json"
    }


def test_a_revision_may_be_asked_for(hub: Hub) -> None:
    """A branch or a commit is allowed; a missing one is refused by name, and so is a revision of a folder."""
    hub.point(SECOND, "next")
    for revision in ("next", SECOND):
        assert pin_revision(ModelRequest(task="causal-lm", source=NAME, revision=revision)).revision == SECOND
    with pytest.raises(
        Refused, match="'owner/tiny' is neither a folder here nor readable from the hub at revision 'v9'"
    ):
        pin_revision(ModelRequest(task="causal-lm", source=NAME, revision="v9"))
    here = ModelRequest(task="causal-lm", source=str(source_folder(ModelRequest(task="causal-lm", source=NAME))))
    assert pin_revision(here) == here
    with pytest.raises(Refused, match="revision 'v9' is for names on the hub"):
        source_folder(ModelRequest(task="causal-lm", source=here.source, revision="v9"))
    with pytest.raises(Refused, match="revision 'v9' needs a source"):
        ModelRequest(task="causal-lm", config=BERT, revision="v9")


@pytest.mark.usefixtures("hub")
def test_an_adapter_names_the_commit_of_its_base(tmp_path: Path) -> None:
    """The adapter loads with exactly the base weights that it was trained on."""
    plain = ModelRequest(task="sequence-classification", source=NAME, lora=Lora(r=2, targets=("query",)))
    request = pin_revision(plain)
    config = configuration(request, ("no", "yes"))
    write_init_weights(config, request, 3, tmp_path / "start")
    folder = export_model(config, request, tmp_path / "start", {}, tmp_path)
    written = json.loads((folder / "adapter_config.json").read_text())
    assert (written["base_model_name_or_path"], written["revision"]) == (NAME, FIRST)


IMAGE, TEXT = "image-classification", "sequence-classification"


@pytest.mark.parametrize(
    "task, config, side, positions",
    [
        (IMAGE, {"model_type": "hiera", "image_size": [64, 64]}, 64, None),
        (IMAGE, {"model_type": "pvt_v2"}, 224, None),
        (IMAGE, {"model_type": "deit", "image_size": 32}, 32, None),
        (TEXT, {"model_type": "xlnet", "d_model": 32, "n_layer": 1, "n_head": 2, "d_inner": 64}, None, None),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_sizes_are_read_however_a_family_says_them(
    task: str, config: dict[str, Any], side: int | None, positions: int | None
) -> None:
    """Bug: Hiera and PVTv2 (a height and a width) and DeiT (several classes for one task) ended in raw errors, and
    XLNet, whose -1 means any number of positions, in "set data.max_length to at most -1".
    """
    request = ModelRequest(task=task, config=config)
    found = input_spec(request)
    assert (found.image_size, found.max_positions) == (side, positions)
    assert base_skeleton(configuration(request, ("no", "yes")), request).training


@pytest.mark.parametrize(
    "config, why",
    [
        ({"model_type": "pvt_v2", "image_size": [32, 64]}, r"image_size is \[32, 64\], but images are made square"),
        ({"model_type": "perceiver", "num_latents": -1}, "PerceiverConfig cannot do image-classification"),
    ],
)
def test_settings_that_make_no_model_are_refused_in_a_sentence(config: dict[str, Any], why: str) -> None:
    """Any error of the model's own code becomes a sentence."""
    request = ModelRequest(task=IMAGE, config=config)
    with pytest.raises(Refused, match=why) as caught:
        input_spec(request)
        base_skeleton(configuration(request, ("no", "yes")), request)
    assert "\n" not in str(caught.value)


def test_a_setting_that_differs_between_layers_is_refused_of_a_folder(tmp_path: Path) -> None:
    """Bug: any error while a setting was looked up counted as its being there. A new model may have it, but one number
    cannot be that of the layers of a folder, of which transformers says so."""
    config = {**small_config("gemma4_text"), "head_dim": 8}
    new = configuration(ModelRequest(task="causal-lm", config=config))
    new.save_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match="per-layer attribute"):
        AutoConfig.from_pretrained(tmp_path).head_dim  # noqa: B018
    with pytest.raises(Refused, match=r"config\.head_dim is no single setting of this Gemma4TextConfig"):
        configuration(ModelRequest(task="causal-lm", source=str(tmp_path), config={"head_dim": 4}))


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_scaled_positions_of_a_request_are_those_of_an_edited_folder(key: str, tmp_path: Path) -> None:
    """Bug: a value without rope_theta was refused for a power of None, and transformers wrote into the request. Given
    in the request, it means what it means in config.json beside the base's rope_theta."""
    given = {"type": "linear", "factor": 4.0}
    (tmp_path / "config.json").write_text(json.dumps({**small_config("llama"), "rope_theta": 500.0}))
    request = ModelRequest(task="causal-lm", source=str(tmp_path), config={key: dict(given)})
    found = configuration(request)
    assert request.config == {key: given}
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**settings, "rope_scaling": given}))
    assert found.rope_parameters == AutoConfig.from_pretrained(tmp_path).rope_parameters


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("llama", {"rope_theta": 500}),
        ("gpt_neox", {"rotary_pct": 0.5}),
        ("phi", {"rope_theta": 70.0, "partial_rotary_factor": 0.5}),
        ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}, "rope_theta": 70.0}),
        ("llama", {"rope_theta": 70.0, "rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
        ("cohere2_moe", {"rope_theta": 70.0}),
    ],
)
@pytest.mark.parametrize("of_folder", [True, False])
def test_single_settings_of_rotary_positions_are_those_of_an_edited_folder(
    kind: str, changes: dict[str, Any], of_folder: bool, tmp_path: Path
) -> None:
    """Bug: rope_theta, which config.json of transformers 4 has, was refused as no setting of the configuration, and had
    no effect where a class still has that name. In the request it means what transformers makes of it there."""
    plain = {key: value for key, value in small_config(kind).items() if key != "rope_parameters"}
    (tmp_path / "config.json").write_text(json.dumps(plain))
    where: dict[str, Any] = {"source": str(tmp_path), "config": changes} if of_folder else {"config": plain | changes}
    found = configuration(ModelRequest(task="causal-lm", **where)).rope_parameters
    (tmp_path / "config.json").write_text(json.dumps({**plain, **changes}))
    wanted = AutoConfig.from_pretrained(tmp_path)
    theta = {"rope_theta": wanted.rope_theta} if hasattr(wanted, "rope_theta") else {}
    assert found == {**wanted.rope_parameters, **theta}


@pytest.mark.parametrize(("key", "layers"), [("rope_theta", "full"), ("rope_local_base_freq", "sliding")])
def test_a_single_setting_is_that_of_the_layers_that_read_it(key: str, layers: str, tmp_path: Path) -> None:
    """Gemma 3 rotates its two kinds of layers by a number each; the other one stays, and a scaling without a kind is
    refused, which replaced both."""
    made = configuration(ModelRequest(task="causal-lm", config={**small_config("gemma3_text"), key: 500.0}))
    assert made.rope_parameters[f"{layers}_attention"]["rope_theta"] == 500.0
    made.save_pretrained(tmp_path)
    request = ModelRequest(task="causal-lm", source=str(tmp_path), config={key: 70.0})
    found = configuration(request).rope_parameters
    wanted = made.rope_parameters | {f"{layers}_attention": {"rope_type": "default", "rope_theta": 70.0}}
    assert found == wanted
    with pytest.raises(Refused, match=r"config\.rope_scaling cannot be .* give rope_parameters of .*_attention and "):
        configuration(replace(request, config={"rope_scaling": {"rope_type": "linear", "factor": 8.0}}))


@pytest.mark.parametrize(
    ("kind", "advice"), [("gpt2", "see its doc"), ("gpt_neox", r"it has model\.config\.rope_parameters: .*10000")]
)
def test_rotary_settings_that_a_model_does_not_read_are_refused(kind: str, advice: str, tmp_path: Path) -> None:
    """GPT-2 rotates nothing, and GPT-NeoX by another name."""
    configuration(ModelRequest(task="causal-lm", config=small_config(kind))).save_pretrained(tmp_path)
    theta = {"rope_theta": 70.0}
    for where in ({"config": {**small_config(kind), **theta}}, {"config": theta, "source": str(tmp_path)}):
        with pytest.raises(Refused, match=rf"config\.rope_theta is not a setting of GPT\w+; {advice}"):
            configuration(ModelRequest(task="causal-lm", **where))


@pytest.mark.parametrize("value", ["x", 0, True])
def test_a_rotary_setting_is_a_number(value: Any) -> None:
    """What is none is refused, and by its name."""
    with pytest.raises(Refused, match=rf"config\.rope_theta cannot be {value!r} \(it is a number above 0\)"):
        configuration(ModelRequest(task="causal-lm", config={**small_config("llama"), "rope_theta": value}))


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_a_dtype_of_a_request_is_refused(key: str) -> None:
    """Bug: it was taken and had no effect; what decides is named."""
    with pytest.raises(Refused, match=rf"config\.{key} has no effect .* set model\.precision"):
        configuration(ModelRequest(task="sequence-classification", config={**BERT, key: "bfloat16"}))


def test_a_dtype_that_torch_does_not_have(tmp_path: Path) -> None:
    """Bug: what a configuration class raises for one of its settings, here an AttributeError, ended as a traceback."""
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "dtype": "evil"}')
    with pytest.raises(Refused, match=f"^model: {tmp_path} has no usable config.json .*evil"):
        configuration(ModelRequest(task="causal-lm", source=str(tmp_path)))
