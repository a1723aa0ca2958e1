"""Early checks refuse a run before a device is touched, in real runs and in dry runs."""

import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from fleetune.contracts import json_io
from fleetune.contracts.run_config import RunConfig
from fleetune.errors import Refused
from fleetune.store import Store
from flows import api, preflight
from flows.context import RunContext, StageSelection
from flows.preflight import predict_run
from flows.runner import Runner
from flows.tracking import StageEvent
from tests.support.data.chat_samples import chats
from tests.support.data.samples import json_lines

PLAIN: dict[str, Any] = {
    "name": "small",
    "fleet": {"devices": [{"name": "fast"}, {"name": "slow"}]},
    "model": {
        "task": "sequence-classification",
        "config": {"model_type": "bert", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
                   "intermediate_size": 16, "vocab_size": 300},
    },
    "data": {"source": "rows.csv"},
    "strategy": {"name": "dp"},
    "training": {"rounds": 4},
}  # fmt: skip


def config(folder: Path, **sections: Any) -> RunConfig:
    """A run over a small file, with some sections changed."""
    (folder / "rows.csv").write_text("text,label\n" + "".join(f"t{n},{n % 2}\n" for n in range(10)))
    plain = {**PLAIN, "data": {"source": str(folder / "rows.csv")}}
    for name, change in sections.items():
        plain[name] = {**plain[name], **change} if isinstance(change, dict) else change
    return json_io.load(RunConfig, plain, "small")


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a column": ({"data": {"label_column": "kind"}}, "no column 'kind'"),
    "test rows": ({"data": {"test_samples": 9}}, "test_samples asks for 9 rows"),
    "an option": ({"strategy": {"options": {"device": "fast"}}}, "strategy dp: device: unknown key"),
    "a device of an option": ({"strategy": {"options": {"devices": ["fats"]}}}, "device is 'fats'; allowed are fast"),
    "a method": ({"strategy": {"name": "asteroid", "options": {"method": "x"}}}, "method is 'x'; allowed are search"),
    "scores": ({"strategy": {"name": "d2ft"}}, "set profile.scores=true"),
    "targets": (
        {"model": {"lora": {"targets": ["nothing"]}}},
        "lora.targets .* fit no layer; the layers are query, key, value, dense$",
    ),
    "tied targets": (
        {"model": {"task": "causal-lm", "config": {"model_type": "gpt2"}, "lora": {"targets": ["wte"]}}},
        "fit transformer.wte, whose weight another layer shares",
    ),
    "an adapter": (
        {"model": {"lora": {"targets": ["query"], "start": "nowhere"}}},
        "lora.start: nowhere has no adapter_config.json",
    ),
    "a pattern": ({"model": {"freeze": ["nothing"]}}, "freeze pattern 'nothing' matches no parameter"),
    "a seed": ({"seed": 2**64}, "seed 18446744073709551616 is beyond 64 bits"),
    "scored rounds": (
        {"strategy": {"name": "split-learning"}, "training": {"evaluate_every_rounds": 4}},
        "evaluate_every_rounds 4 is no multiple of the 10 rounds between two averages of strategy split-learning",
    ),
    "momentum of adamw": (
        {"training": {"momentum": 0.9}},
        "training: momentum is 0.9, but it is a setting of sgd, and optimizer is adamw, which would ignore it; leave "
        "it out, or set training.optimizer to sgd",
    ),
    "betas of sgd": (
        {"training": {"optimizer": "sgd", "beta1": 0.8, "epsilon": 1e-6}},
        "training: beta1 is 0.8, but it is a setting of adamw, and optimizer is sgd, which would ignore it",
    ),
    "epsilon of sgd": ({"training": {"optimizer": "sgd", "epsilon": 1e-6}}, "training: epsilon is 1e-06, but it is"),
    "a warm-up": ({"training": {"warmup_rounds": 5}}, "warmup_rounds is 5, but the run has 4 rounds"),
}


@pytest.mark.parametrize("dry", [False, True], ids=["run", "dry run"])
@pytest.mark.parametrize("case", WRONG)
def test_nothing_is_started_for_it(case: str, dry: bool, tmp_path: Path) -> None:
    """Bug: a misspelt option was refused only after all devices were measured, and a dry run said nothing."""
    sections, says = WRONG[case]
    heard: list[StageEvent] = []
    with pytest.raises(Refused, match=says):
        api.run(config(tmp_path, **sections), root=tmp_path / "kept", dry_run=dry, listen=heard.append)
    assert heard == [], "the first event comes before the start of the pipeline's engine"
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"max_length": 513}, "max_length is 513, but the model has 512 positions; set data.max_length to at most 512"),
        ({"label_column": "id"}, "each of the 40 rows has another label in column 'id', as if it named the rows"),
        ({"label_column": "late"}, "line 41 has no label in column 'late'"),
    ],
)
def test_a_dry_run_finds_what_prepare_would_refuse(data: dict[str, Any], said: str, tmp_path: Path) -> None:
    """Bug: only the first row was looked at, and the model's positions (BERT's 512) not at all, until prepare ran."""
    made = config(tmp_path, data=data)
    rows = (f"t{n},{n % 2},i{n},{'x' if n < 39 else ''}\n" for n in range(40))
    (tmp_path / "rows.csv").write_text("text,label,id,late\n" + "".join(rows))
    with pytest.raises(Refused, match=said):
        api.run(made, root=tmp_path / "kept", dry_run=True)
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("kind", ["chat", "completion", "text"])
def test_a_dry_run_reads_all_rows_of_a_language_model(kind: str, packing: bool, tmp_path: Path) -> None:
    """Bug: of chats and completions, and of texts that share sequences, only the first row was looked at."""
    rows: dict[str, list[dict[str, Any]]] = {
        "chat": [*chats(40), {"messages": [{"role": "nobody", "content": "hi"}]}],
        "completion": [{"prompt": f"p{n}", "completion": "c"} for n in range(40)] + [{"prompt": "p", "completion": 1}],
        "text": [{"text": f"text {n}"} for n in range(40)] + [{"text": 41}],
    }
    source = json_lines(tmp_path / "r.jsonl", rows[kind])
    causal = {"task": "causal-lm", "config": {"model_type": "gpt2", "vocab_size": 300}}
    made = config(tmp_path, model=causal, data={"source": str(source), "packing": packing})
    with pytest.raises(Refused, match=r"r\.jsonl: line 41"):
        api.run(made, root=tmp_path / "kept", dry_run=True)


def test_a_dry_run_of_a_model_on_the_hub_reads_all_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: with a name on the hub no row was read, though the model's settings are here once its commit is known."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    commit, cache = "a" * 40, tmp_path / "hub" / "models--owner--tiny"
    files = {
        "refs/main": commit,
        f"snapshots/{commit}/config.json": json.dumps(PLAIN["model"]["config"]),
        f"snapshots/{commit}/model.safetensors": "weights",
    }
    for name, content in files.items():
        (cache / name).parent.mkdir(parents=True, exist_ok=True)
        (cache / name).write_text(content)
    made = config(tmp_path, model={"source": "owner/tiny", "config": None})
    with (tmp_path / "rows.csv").open("a") as file:
        file.write("the last,\n")
    with pytest.raises(Refused, match="line 12 has no label"):
        api.run(made, root=tmp_path / "kept", dry_run=True)


def test_a_family_of_translators_that_cannot_be_cut_is_refused_first(tmp_path: Path) -> None:
    """Bug: of NLLB and M2M100 it was known once all rows were tokenised."""
    made = config(
        tmp_path, model={"task": "seq2seq", "config": {"model_type": "m2m_100"}}, data={"target_column": "label"}
    )
    with pytest.raises(Refused, match="m2m_100 .NLLB, M2M100. .* cannot be cut; take mBART-50"):
        api.run(made, root=tmp_path / "kept", dry_run=True)


@pytest.mark.parametrize(
    ("kind", "side", "said"),
    [
        (
            "vit",
            112,
            r"data: image_size is 112, which ViT cannot read \(Input image size .*; give 224, or leave it out",
        ),
        ("dinov2", 13, r"image_size is 13, which Dinov2 cannot read \(.*Kernel size"),
        ("siglip", 384, "image_size is 384, which Siglip cannot read"),
        ("clip", 224, "image_size is 224, which CLIP cannot read .*; give 32, or leave it out"),
        ("siglip2", 15, "image_size is 15, which Siglip2 cannot read .an image has one patch at least.; give 16"),
        ("dinov2", 112, ""),
        ("siglip2", 112, ""),
        ("resnet", 32, ""),
    ],
)
def test_a_size_of_images_that_the_model_cannot_read_is_refused(
    kind: str, side: int, said: str, tmp_path: Path
) -> None:
    """Bug: it was found once all images were decoded, as a model without a graph, and the setting was not named."""
    own = {"vision_config": {"image_size": 32}} if kind == "clip" else {}
    model = {"task": "image-classification", "config": {"model_type": kind, **own}}
    made = config(tmp_path, model=model, data={"source": "digits", "image_size": side})
    if not said:
        api.run(made, root=tmp_path / "kept", dry_run=True)
        return
    with pytest.raises(Refused, match=said):
        api.run(made, root=tmp_path / "kept", dry_run=True)


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"seed": 2**62, "training": {"warmup_rounds": 4}, "data": {"test_samples": 2}},
        {"training": {"optimizer": "sgd", "momentum": 0.9}},
        {"training": {"beta1": 0.8, "epsilon": 1e-6}},
        {"strategy": {"name": "d2ft"}, "profile": {"scores": True}},
        {"model": {"lora": {"targets": ["query"]}, "freeze": ["base_model.model.bert.pooler"]}},
        {"strategy": {"name": "pp", "options": {"groups": [["fast"], ["slow"]]}}},
    ],
    ids=["plain", "at the limits", "momentum", "betas", "scored", "adapters", "groups"],
)
def test_what_is_right_passes(sections: dict[str, Any], tmp_path: Path) -> None:
    """A dry run of a valid config predicts all seven stages."""
    plain = {**sections}
    profile = plain.pop("profile", None)
    made = config(tmp_path, **plain)
    if profile:
        made = json_io.load(RunConfig, {**json_io.dump(made), "profile": profile}, "small")
    assert len(api.run(made, root=tmp_path / "kept", dry_run=True).stages) == 7


def test_a_run_that_would_train_on_what_is_only_tested_is_refused(tmp_path: Path) -> None:
    """A share of 1 is for `evaluate`; a plan may be made."""
    made = config(tmp_path, data={"validation": 1})
    with pytest.raises(Refused, match=r"data.validation is 1, so that no sample is left to train on"):
        api.run(made, root=tmp_path / "kept", dry_run=True)
    api.run(made, root=tmp_path / "kept", selection=StageSelection(until="plan"), dry_run=True)


def test_devices_that_join_have_any_name(tmp_path: Path) -> None:
    """Names of devices that join are unknown beforehand, so only the plan stage checks them."""
    join = {"fleet": {"join": {"token_file": "t"}}, "strategy": {"name": "single", "options": {"device": "guest"}}}
    assert api.run(config(tmp_path, **join), root=tmp_path / "kept", dry_run=True).state == "planned"


def test_only_stages_that_will_run_are_checked(tmp_path: Path) -> None:
    """A run that ends before training does not ask for its schedule."""
    wrong = config(tmp_path, training={"warmup_rounds": 5})
    context = RunContext(store=Store(tmp_path / "kept"))
    preflight.validate(predict_run(Runner(context, wrong, StageSelection(until="plan"))))
    with pytest.raises(Refused, match="warmup_rounds"):
        preflight.validate(predict_run(Runner(context, wrong, StageSelection())))
