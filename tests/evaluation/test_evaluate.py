"""Evaluation of whole checkpoints."""

import gc
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from fleetune.contracts import json_io
from fleetune.contracts.input_spec import InputSpec
from fleetune.contracts.metrics import EvaluationMetrics, Forecast
from fleetune.contracts.run_config import DataRequest, ModelRequest
from fleetune.data.prepared_data import PreparedData
from fleetune.data.writer import prepare_data
from fleetune.errors import Refused
from fleetune.evaluation import EvaluationTask, Summary, evaluate, measured_forecast
from fleetune.evaluation.trained_model import ScoringOptions, score, without_cache
from tests.support.data.samples import json_lines
from tests.support.evaluation.instances import BERT, LABELS, LORA, finished, moved, started, text_data

WHOLE = ModelRequest(task="sequence-classification", config=BERT)
ADAPTED = replace(WHOLE, lora=LORA)
CAUSAL = ModelRequest(
    task="causal-lm",
    config={"model_type": "gpt2", "vocab_size": 264, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2},
)


def pretrained(folder: Path) -> ModelRequest:
    """Save the weights of a BERT without a head for our classes."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(3)
    BertModel(BertConfig(**{key: value for key, value in BERT.items() if key != "model_type"})).save_pretrained(folder)
    return ModelRequest(task="sequence-classification", source=str(folder), lora=LORA)


def other_head(folder: Path) -> ModelRequest:
    """Save a finished classifier of five classes."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(3)
    settings = {key: value for key, value in BERT.items() if key != "model_type"}
    BertForSequenceClassification(BertConfig(**settings, num_labels=5)).save_pretrained(folder)
    return ModelRequest(task="sequence-classification", source=str(folder), lora=LORA)


def headless(folder: Path) -> ModelRequest:
    """Save a BERT without a pooler, which is drawn anew."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(3)
    settings = BertConfig(**{key: value for key, value in BERT.items() if key != "model_type"})
    BertModel(settings, add_pooling_layer=False).save_pretrained(folder)
    return ModelRequest(task="sequence-classification", source=str(folder), lora=LORA)


def trained(task: EvaluationTask) -> Any:
    """Move the model and save it as training does."""
    model = moved(started(task.model_folder, task.model))
    model.save_pretrained(task.checkpoint_folder / ("adapter" if task.model.lora else "model"))
    return model


def expected(task: EvaluationTask, model: Any) -> dict[str, float]:
    """Return the scores of a model in memory."""
    return score(model, PreparedData(task.data_folder), ScoringOptions(batch_samples=4)).values


@pytest.fixture(params=["whole", "adapter", "adapter of files", "other head", "no pooler", "causal-lm"])
def request_of(request: pytest.FixtureRequest, tmp_path: Path) -> ModelRequest:
    """Return a model request for each combination of checkpoint and model.

    Bug: on a base with a head for other labels, or with newly drawn modules, an adapter was trained to its end and then
    refused by evaluation.
    """
    made = {"adapter of files": pretrained, "other head": other_head, "no pooler": headless}
    if request.param in made:
        return made[request.param](tmp_path / "pretrained")
    return {"whole": WHOLE, "adapter": ADAPTED, "causal-lm": CAUSAL}[request.param]


def test_folder_scores_as_the_model_in_memory(request_of: ModelRequest, tmp_path: Path) -> None:
    """`after` is exactly the saved model's score and `before` exactly that of the starting weights."""
    task = finished(tmp_path, request_of)
    model = trained(task)
    metrics = evaluate(task)
    assert {one.name: one.after for one in metrics.scores} == expected(task, model)
    assert {one.name: one.before for one in metrics.scores} == expected(task, started(tmp_path / "profile", request_of))
    assert metrics.scores[-1].before != metrics.scores[-1].after


def test_scoring_keeps_no_cache(tmp_path: Path) -> None:
    """Keys and values for tokens to come, which nobody reads, would take more memory than all else; the model has its
    cache again afterwards, for `predict`."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(**{**(CAUSAL.config or {}), "bos_token_id": 1, "eos_token_id": 2}))
    kept: list[Any] = []
    model.register_forward_hook(lambda module, given, made: kept.append(made.past_key_values))
    score(model, text_data(tmp_path / "data", "causal-lm"), ScoringOptions())
    assert kept and not any(each is not None for each in kept)
    model(input_ids=torch.tensor([[5, 6]]))
    assert kept[-1] is not None


def test_a_decoders_own_configuration_has_no_cache_either() -> None:
    """T5's decoder reads a copy of the model's configuration."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, vocab_size=30, decoder_start_token_id=0)
    model = T5ForConditionalGeneration(config)
    given = torch.tensor([[5, 6]])
    with without_cache(model):
        assert model(input_ids=given, decoder_input_ids=given).past_key_values is None
    assert model(input_ids=given, decoder_input_ids=given).past_key_values is not None


def test_three_files_are_written(tmp_path: Path) -> None:
    """evaluation.json has the returned metrics, summary.json a row per device, and report.html needs no other file."""
    task = replace(finished(tmp_path, WHOLE), facts={"who": "a <fact>"}, settings="seed: <9>")
    task = replace(task, training=replace(task.training, resumed_from_round=1))  # whose rounds are listed as well
    trained(task)
    metrics = evaluate(task)
    assert sorted(path.name for path in task.output.iterdir()) == ["evaluation.json", "report.html", "summary.json"]
    assert json_io.read(EvaluationMetrics, task.output / "evaluation.json") == metrics
    summary = json_io.read(Summary, task.output / "summary.json")
    assert summary.evaluation == metrics
    assert [row.device for row in summary.devices] == [device.name for device in task.fleet.devices]
    assert sum(row.units for row in summary.devices) >= len(task.profile.units)
    assert (summary.run, summary.result, summary.rounds) == ("numbers", "model", len(task.training.rounds))
    page = (task.output / "report.html").read_text()
    assert "numbers" in page
    assert "a &lt;fact&gt;" in page and "seed: &lt;9&gt;" in page
    assert [one.name for one in metrics.classes] == list(PreparedData(task.data_folder).labels)
    for one in metrics.classes:
        assert f'{one.name}</td><td class="n">{one.samples}</td>' in page
    assert "from random weights" in page


@pytest.mark.parametrize(
    ("known", "number", "heading", "said"),
    [
        (None, 0, "score on 13 samples not trained on<", ""),
        (0, 0, "score on 13 samples not trained on<", ""),
        (5, 5, "score on 13 samples, 5 of them trained on<", "5 of 13 samples that are scored were trained on"),
        ("gone", None, "score on 13 samples<", "whether the model was trained on samples .* is not known: gone"),
    ],
)
def test_samples_that_were_trained_on_are_told(
    known: int | str | None, number: int | None, heading: str, said: str, tmp_path: Path
) -> None:
    """Bug: whatever was scored, the report called it not trained on."""
    told: list[str] = []
    task = replace(finished(tmp_path, WHOLE), trained_on=known, note=told.append)
    trained(task)
    assert evaluate(task).trained_on == number
    page = (task.output / "report.html").read_text()
    assert heading in page and ("27 samples to train on" in page) == (known is None)
    assert re.search(said, " ".join(told)) and re.search(said, page) and bool(told) == bool(said)


@pytest.mark.parametrize(
    ("known", "heading"),
    [
        (None, "score on 13 samples not trained on, by which the result was chosen<"),
        (0, "score on 13 samples not trained on<"),
    ],
    ids=["of the training", "others"],
)
def test_samples_that_chose_the_result_are_told(known: int | None, heading: str, tmp_path: Path) -> None:
    """Bug: scores of samples by which the best state was chosen were called "not trained on", without a word of it."""
    task = finished(tmp_path, WHOLE)
    task = replace(task, trained_on=known, training=replace(task.training, chosen=True))
    trained(task)
    evaluate(task)
    assert heading in (task.output / "report.html").read_text()


def test_a_test_split_beside_which_validation_chose_is_clean(tmp_path: Path) -> None:
    """Where states were scored on a validation split, the test split has chosen nothing, and the report has both."""
    task = finished(tmp_path, WHOLE)
    info = PreparedData(task.data_folder).info
    shutil.copytree(task.data_folder / "test", task.data_folder / "validation")
    other = replace(next(one for one in info.splits if one.name == "test"), name="validation")
    json_io.write(replace(info, splits=(*info.splits, other)), task.data_folder / "data.json")
    task = replace(task, training=replace(task.training, chosen=True))
    trained(task)
    assert evaluate(task).scored == "13 samples not trained on"
    assert "13 to test on, 13 to score while it trains" in (task.output / "report.html").read_text()


def test_one_model_is_held_at_a_time(tmp_path: Path) -> None:
    """Bug: the trained model stayed in memory while the untrained one was scored."""
    held = set[int]()

    def progress(*_: Any) -> None:
        gc.collect()
        held.add(sum(isinstance(each, PreTrainedModel) for each in gc.get_objects()) - before)

    task = replace(finished(tmp_path, WHOLE), progress=progress)
    trained(task)
    gc.collect()
    before = sum(isinstance(each, PreTrainedModel) for each in gc.get_objects())
    evaluate(task)
    assert max(held) == 2, "a classifier, and the body in it"


def test_of_packed_data_sequences_are_counted(tmp_path: Path) -> None:
    """Bug: what several samples share was called a sample."""
    rows = json_lines(tmp_path / "rows.jsonl", [{"text": f"number {n}"} for n in range(40)])
    request = DataRequest(source=str(rows), max_length=32, packing=True)
    spec = InputSpec(task="causal-lm", vocab_size=264, max_positions=32)
    prepare_data(request, spec, tmp_path / "packed", 0)
    task = replace(finished(tmp_path, CAUSAL), data_folder=tmp_path / "packed", trained_on=1, note=print)
    trained(task)
    found = evaluate(task)
    assert found.scored == f"{found.samples} sequences, 1 of the sequences trained on" and found.samples < 8
    assert f"1 of {found.samples} sequences that are scored" in (task.output / "report.html").read_text()


def test_of_a_model_that_went_on_from_an_earlier_one_nothing_is_claimed(tmp_path: Path) -> None:
    """Bug: what the earlier run had trained on was called not trained on, since only data of the last were compared."""
    task = replace(finished(tmp_path, WHOLE), continued=True)
    trained(task)
    assert evaluate(task).trained_on is None
    page = (task.output / "report.html").read_text()
    assert "score on 13 samples<" in page and "27 samples to train on" in page


def test_test_rows_that_are_training_rows_are_counted(tmp_path: Path) -> None:
    """Bug: the report of a run whose test split repeats rows of training called them not trained on."""
    rows = [{"text": f"number {n}", "label": LABELS[n % 3]} for n in range(40)]
    for name, part in (("train", rows[:27]), ("test", rows[20:])):
        (tmp_path / "rows").mkdir(exist_ok=True)
        (tmp_path / "rows" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    task = finished(tmp_path, WHOLE)
    needs = InputSpec(task=WHOLE.task, vocab_size=264, max_positions=32)
    prepare_data(DataRequest(source=str(tmp_path / "rows"), max_length=16), needs, tmp_path / "shared", 0)
    task = replace(task, data_folder=tmp_path / "shared")
    trained(task)
    assert evaluate(task).trained_on == 7
    assert "score on 20 samples, 7 of them trained on<" in (task.output / "report.html").read_text()


def test_a_gpu_of_another_machine_is_not_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a machine with a GPU of its own looked for the fourth one, which is that of another machine, and failed."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    task = replace(finished(tmp_path, WHOLE), accelerator="cuda:3")
    trained(task)
    assert evaluate(task).samples == 13


def test_forecast_is_compared_with_the_measurement(tmp_path: Path) -> None:
    """Forecast 0.3 s, measured 0.4 s: the error is -25 %; bytes add up over links; energy stays unknown."""
    task = finished(tmp_path, WHOLE)
    trained(task)
    metrics = evaluate(task)
    assert metrics.forecast_error == pytest.approx(-0.25)
    assert metrics.bytes_per_round == sum(link.bytes for link in task.training.link_bytes)
    assert metrics.forecast_bytes_per_round == sum(link.bytes for link in task.forecast.link_bytes) > 0
    assert metrics.peak_memory_bytes == task.training.peak_memory_bytes
    forecast = {each.device: each.amount for each in task.forecast.memory_bytes}
    assert {each.device: each.amount for each in metrics.forecast_memory_bytes} == {
        each.device: forecast[each.device] for each in metrics.peak_memory_bytes if each.device in forecast
    }
    assert metrics.energy_j is None
    assert metrics.samples == PreparedData(task.data_folder).size("test")


def test_energy_is_that_of_all_rounds(tmp_path: Path) -> None:
    """Joules of the rounds add up; where one round has none, as of an earlier attempt, the sum would be too small."""
    task = finished(tmp_path, WHOLE)
    trained(task)
    rounds = tuple(replace(one, energy_j=2.5) for one in task.training.rounds)
    asked = replace(task, training=replace(task.training, rounds=rounds))
    assert evaluate(asked).energy_j == 2.5 * len(rounds)
    assert "energy" in (task.output / "report.html").read_text()
    half = replace(task, training=replace(task.training, rounds=(*rounds[:-1], task.training.rounds[-1])))
    assert evaluate(half).energy_j is None


def test_scores_come_in_a_fixed_order(tmp_path: Path) -> None:
    """Accuracy, macro F1 and loss follow each other, each with its better direction."""
    task = finished(tmp_path, WHOLE)
    trained(task)
    scores = [(one.name, one.better) for one in evaluate(task).scores]
    assert scores == [("accuracy", "higher"), ("macro_f1", "higher"), ("loss", "lower")]


def refused(task: EvaluationTask, says: str) -> None:
    """Check that evaluation is refused in one line and writes nothing."""
    with pytest.raises(Refused, match=says) as caught:
        evaluate(task)
    assert "\n" not in str(caught.value)
    assert not task.output.exists()


@pytest.mark.parametrize("request_", [WHOLE, ADAPTED], ids=["model", "adapter"])
def test_damaged_weights_are_named(request_: ModelRequest, tmp_path: Path) -> None:
    """A cut, overwritten, incomplete or missing safetensors file is refused by its name."""
    task = finished(tmp_path, request_)
    trained(task)
    (file,) = task.checkpoint_folder.rglob("*.safetensors")
    whole, tensors = file.read_bytes(), load_file(file)
    for damaged in (whole[:-10], whole[:4], b"\xff" * len(whole)):
        file.write_bytes(damaged)
        refused(task, f"{file.name}: cannot be read")
    tensors.pop(sorted(tensors)[-1])
    save_file(tensors, file, metadata={"format": "pt"})
    refused(task, f"{file.name}: .* is missing")
    file.unlink()
    refused(task, f"{file.name}: cannot be read")


def test_missing_shard_is_named(tmp_path: Path) -> None:
    """The missing file of a model saved in several files is named."""
    task = finished(tmp_path, WHOLE)
    folder = task.checkpoint_folder / "model"
    moved(started(task.model_folder, WHOLE)).save_pretrained(folder, max_shard_size="20KB")
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 1
    evaluate(replace(task, output=tmp_path / "other"))
    shards[1].unlink()
    refused(task, shards[1].name)


def test_damaged_settings_are_refused(tmp_path: Path) -> None:
    """Malformed config.json and adapter_config.json, and an empty checkpoint, are refused in a sentence."""
    task = finished(tmp_path, WHOLE)
    refused(task, "holds neither model/ nor adapter/")
    trained(task)
    (task.checkpoint_folder / "model" / "config.json").write_text("{")
    refused(task, r"model/config\.json: the model cannot be loaded")


def test_damaged_adapter_settings_are_refused(tmp_path: Path) -> None:
    """A malformed adapter_config.json is refused with the adapter's folder."""
    task = finished(tmp_path, ADAPTED)
    trained(task)
    (task.checkpoint_folder / "adapter" / "adapter_config.json").write_text("{")
    refused(task, "adapter: the adapter cannot be loaded")


def test_adapter_without_all_tensors_is_refused(tmp_path: Path) -> None:
    """Tensors that neither the adapter nor its base holds are named, since they would be drawn at random."""
    request = pretrained(tmp_path / "pretrained")
    task = finished(tmp_path, request)
    trained(task)
    file = tmp_path / "pretrained" / "model.safetensors"
    left = {name: tensor for name, tensor in load_file(file).items() if "pooler" not in name}
    save_file(left, file, metadata={"format": "pt"})
    refused(task, r"bert\.pooler\.dense\.bias is neither in the adapter nor in")


def test_data_of_another_task_are_refused(tmp_path: Path) -> None:
    """A classifier is not scored on text without labels."""
    task = finished(tmp_path, CAUSAL)
    refused(replace(task, model=WHOLE), "prepared for causal-lm, but the model's task is sequence-classification")


def test_a_reused_training_keeps_its_forecast(tmp_path: Path) -> None:
    """A training reused on another fleet was once compared with the new fleet's forecast: an error of nobody's."""
    plan, metrics = tmp_path / "plan", tmp_path / "metrics"
    planned = Forecast(round_s=2.0, rows=(), busy_s=(), memory_bytes=(), link_bytes=())
    json_io.write(planned, plan / "forecast.json")
    assert measured_forecast(plan, metrics) == (planned, {}), "metrics of an earlier version hold none"
    json_io.write(planned, metrics / "forecast.json")
    assert measured_forecast(plan, metrics) == (planned, {})
    trained = replace(planned, round_s=4.0)
    json_io.write(trained, metrics / "forecast.json")
    found, note = measured_forecast(plan, metrics)
    assert found == trained and "by the run that trained" in note["times"]
