"""Preparation of a trained classifier that is trained further."""

import dataclasses
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from fleetune.contracts.run_config import DataRequest, Lora, ModelRequest
from fleetune.data.prepared_data import PreparedData
from fleetune.errors import Refused
from fleetune.models.export import export_model
from fleetune.models.init_weights import INIT_WEIGHTS, initial_model, write_init_weights
from fleetune.models.skeleton import saved_configuration
from fleetune.models.source import configuration
from fleetune.preparation.prepare import PreparationTask, prepare
from tests.support.data.samples import json_lines
from tests.support.preparation.instances import preparation_task, prepared_below
from tests.support.training.model_families import BY_NAME, TEXT, model_request

ORDER = ("pear", "fig", "apple")


def finished(folder: Path) -> ModelRequest:
    """A tiny BERT for three fruits, whose classes are not in alphabetical order."""
    request = model_request(BY_NAME["bert"], dropout=True)
    torch.manual_seed(11)
    AutoModelForSequenceClassification.from_config(configuration(request, ORDER)).save_pretrained(folder)
    return ModelRequest(task=TEXT, source=str(folder))


@pytest.mark.parametrize("lora", [None, Lora(r=2, alpha=4, targets=("query",))], ids=["whole", "adapter"])
def test_training_goes_on_with_the_same_classes(lora: Lora | None, tmp_path: Path) -> None:
    """Bug: classes were renumbered alphabetically under a head that kept its weights, and accuracy fell from 1.0 to
    0.0."""
    request = dataclasses.replace(finished(tmp_path / "model"), lora=lora)
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model").eval()
    given = torch.randint(5, 300, (12, 10), generator=torch.Generator().manual_seed(1))
    answers = [ORDER[n] for n in plain(input_ids=given).logits.argmax(dim=-1).tolist()]
    rows = [{"text": f"{n} {name}", "label": name} for n, name in enumerate([*answers, *ORDER, *ORDER])]
    request_data = DataRequest(source=str(json_lines(tmp_path / "rows.jsonl", rows)), max_length=10)
    _, folders = prepared_below(tmp_path, request, request_data)
    config = saved_configuration(folders.model / "model")
    assert config.id2label == AutoConfig.from_pretrained(tmp_path / "model").id2label == dict(enumerate(ORDER))
    assert PreparedData(folders.data).labels == ORDER
    started = initial_model(config, request, folders.model / INIT_WEIGHTS)
    assert [ORDER[n] for n in started(input_ids=given).logits.argmax(dim=-1).tolist()] == answers


def test_a_size_of_images_is_refused_before_any_is_decoded(tmp_path: Path) -> None:
    """Of a model on the hub `prepare` is the first to know. Bug: half an hour of decoding came before."""
    for name in ("cat", "dog"):
        (tmp_path / "set" / name).mkdir(parents=True)
        (tmp_path / "set" / name / "1.png").write_bytes(b"no image")
    task = PreparationTask(
        model=ModelRequest(task="image-classification", config={"model_type": "vit"}),
        data=DataRequest(source=str(tmp_path / "set"), image_size=112),
        seed=0,
        model_folder=tmp_path / "model",
        data_folder=tmp_path / "data",
    )
    with pytest.raises(Refused, match="image_size is 112, which ViT cannot read"):
        prepare(task)


def test_an_earlier_run_is_not_given_other_classes(tmp_path: Path) -> None:
    """Bug: a class that appeared one night began the promoted head anew, or took the place of a class without rows.
    A folder of an earlier run goes on with its classes or some of them; others are refused by name, unless the request
    asks for a new head. What it trained on may be tested on where the split is drawn, which is told."""
    request = finished(tmp_path / "model")
    (tmp_path / "model" / "README.md").write_text("# A model\n\n## Receipt\n")
    new = r"did not learn labels kiwi \(it has pear, fig, apple\).*begin from the base model.*leave their rows out"
    for fruits, said in (((*ORDER, "kiwi"), new), (("pear", "kiwi", "apple"), new), (("apple", "fig"), None)):
        folder = tmp_path / "-".join(fruits)
        folder.mkdir()
        rows = [{"text": f"{n} {fruits[n % len(fruits)]}", "label": fruits[n % len(fruits)]} for n in range(12)]
        given = DataRequest(source=str(json_lines(folder / "rows.jsonl", rows)), max_length=10)
        if said is not None:
            with pytest.raises(Refused, match=said):
                prepared_below(folder, request, given)
        named = dataclasses.replace(request, config={"id2label": dict(enumerate(fruits))}) if said else request
        _, folders = prepared_below(folder, named, given)
        data = PreparedData(folders.data)
        assert data.labels == (fruits if said else ORDER)
        assert any("may have trained on what is tested on here" in note for note in data.info.notes)


def test_other_names_for_the_head_of_an_earlier_run_are_told(tmp_path: Path) -> None:
    """Bug: the refusal said that all classes in the request make a new head; as many as before kept the old one, in
    silence. The same names are no news."""
    request = finished(tmp_path / "model")
    (tmp_path / "model" / "README.md").write_text("# A model\n\n## Receipt\n")
    for classes, told in ((("pear", "kiwi", "apple"), True), (ORDER, False)):
        folder, said = tmp_path / classes[1], list[str]()
        folder.mkdir()
        rows = [{"text": f"{n} {classes[n % 3]}", "label": classes[n % 3]} for n in range(12)]
        given = DataRequest(source=str(json_lines(folder / "rows.jsonl", rows)), max_length=10)
        named = dataclasses.replace(request, config={"id2label": dict(enumerate(classes))})
        prepare(dataclasses.replace(preparation_task(folder, named, given), note=said.append))
        found = [note for note in said if "whose head stays: its classes pear, fig, apple are called" in note]
        assert len(found) == told


def adapter(request: ModelRequest, folder: Path) -> Lora:
    """An exported adapter for the three fruits on that model, and the request that starts from it."""
    lora = Lora(r=2, alpha=4, targets=("query",))
    adapted = dataclasses.replace(request, lora=lora)
    config = configuration(adapted, ORDER)
    write_init_weights(config, adapted, 3, folder / "first")
    return dataclasses.replace(lora, start=str(export_model(config, adapted, folder / "first", {}, folder)))


def test_an_adapter_keeps_its_classes(tmp_path: Path) -> None:
    """Bug: classes were read from the base alone, so that an adapter's head went on with other numbers for its classes.
    Equally many other classes take the numbers that are free, and the run says so.
    """
    plain = finished(tmp_path / "model")
    base = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model").base_model
    base.save_pretrained(tmp_path / "headless")  # its classes are known to the adapter alone
    request = dataclasses.replace(plain, source=str(tmp_path / "headless"))
    request = dataclasses.replace(request, lora=adapter(request, tmp_path))
    for fruits, wanted in (
        (ORDER, ORDER),
        (("apple", "fig"), ORDER),
        (("pear", "kiwi", "apple"), ("pear", "kiwi", "apple")),
    ):
        folder = tmp_path / "-".join(fruits)
        folder.mkdir()
        rows = [{"text": f"{n} {fruits[n % len(fruits)]}", "label": fruits[n % len(fruits)]} for n in range(12)]
        given = DataRequest(source=str(json_lines(folder / "rows.jsonl", rows)), max_length=10)
        _, folders = prepared_below(folder, request, given)
        data = PreparedData(folders.data)
        assert data.labels == wanted
        assert any("its classes are renamed to them" in note for note in data.info.notes) == ("kiwi" in fruits)


def test_an_adapter_of_other_settings_is_refused_at_the_start(tmp_path: Path) -> None:
    """An exported adapter goes on with its own rank and alpha only."""
    request = finished(tmp_path / "model")
    lora = adapter(request, tmp_path)
    write_init_weights(configuration(request, ORDER), dataclasses.replace(request, lora=lora), 3, tmp_path / "start")
    other = dataclasses.replace(request, lora=dataclasses.replace(lora, alpha=16.0))
    with pytest.raises(Refused, match=r"lora_alpha is 4.*, but model\.lora\.alpha is 16"):
        write_init_weights(configuration(request, ORDER), other, 3, tmp_path / "start")


def test_an_adapter_of_another_model_is_told_in_the_run(tmp_path: Path) -> None:
    """The note of an adapter that was made for another model comes from the stage, which goes on."""
    request = finished(tmp_path / "bert-tiny")
    request = dataclasses.replace(request, lora=adapter(request, tmp_path))
    (tmp_path / "bert-tiny").rename(tmp_path / "roberta-tiny")
    request = dataclasses.replace(request, source=str(tmp_path / "roberta-tiny"))
    rows = [{"text": f"{n} {ORDER[n % 3]}", "label": ORDER[n % 3]} for n in range(12)]
    given = DataRequest(source=str(json_lines(tmp_path / "rows.jsonl", rows)), max_length=10)
    said: list[str] = []
    prepare(
        PreparationTask(
            model=request, data=given, seed=0, note=said.append,
            model_folder=tmp_path / "model", data_folder=tmp_path / "data",
        )
    )  # fmt: skip
    assert any("was made for" in note and "roberta-tiny" in note for note in said)


def test_an_adapter_without_names_of_classes_is_told_with_the_order_of_labels(tmp_path: Path) -> None:
    """Bug: the head of an adapter that PEFT wrote, without a config.json, got the labels in alphabetical order without
    a word, whatever its own was. Names in the request give the order, and labels that are its numbers need none."""
    base = finished(tmp_path / "model")
    AutoModelForSequenceClassification.from_pretrained(tmp_path / "model").base_model.save_pretrained(tmp_path / "base")
    plain = dataclasses.replace(base, source=str(tmp_path / "base"))
    plain = dataclasses.replace(plain, lora=adapter(plain, tmp_path))
    (tmp_path / "adapter" / "config.json").unlink()  # PEFT writes none
    named = dataclasses.replace(plain, config={"id2label": dict(enumerate(ORDER))})
    for request, labels, order, told in (
        (plain, ORDER, tuple(sorted(ORDER)), True),
        (named, ORDER, ORDER, False),
        (plain, (0, 1, 2), ("0", "1", "2"), False),
    ):
        folder, said = tmp_path / f"{told}{labels[0]}", list[str]()
        rows = [{"text": f"{n} fruits", "label": labels[n % 3]} for n in range(12)]
        folder.mkdir()
        given = DataRequest(source=str(json_lines(folder / "rows.jsonl", rows)), max_length=10)
        prepare(
            PreparationTask(
                model=request, data=given, seed=0, note=said.append,
                model_folder=folder / "model", data_folder=folder / "data",
            )
        )  # fmt: skip
        assert PreparedData(folder / "data").labels == order
        found = [note for note in said if "does not name the classes" in note]
        assert [note.partition("this order: ")[2] for note in found] == (
            ["apple, fig, pear; if it was trained with another, give model.config.id2label"] if told else []
        )
