"""`fleetune predict` asks the model of a run, and says in a sentence what it cannot take."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from fleetune.contracts import json_io
from fleetune.contracts.run_config import DataRequest, ModelRequest
from fleetune.data.job import Preparation
from fleetune.data.prepared_data import LocalSource, PreparedData
from fleetune.data.writer import write_data
from fleetune.errors import Refused
from fleetune.evaluation.prediction import Prediction
from fleetune.store import StageRecord, Store
from flows.cli.app import app
from flows.hand_over.predict import Asked, predict
from flows.notebook import FinishedRun
from tests.support.data.chat_samples import chat_spec, chats
from tests.support.data.samples import json_lines, prepared
from tests.support.flows.hand_over.runs import ADAPTED, WHOLE, base_folder, run_of, stored_run


@pytest.mark.parametrize("request_", [WHOLE, ADAPTED], ids=["whole", "adapter"])
def test_texts_and_files_are_classified(
    request_: ModelRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Arguments first, then the rows of files in their order; one text has one prediction wherever it stands."""
    found, _ = run_of(tmp_path, request_)
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "number 3"}\n{"text": "number 4 !"}\n')
    capsys.readouterr()
    said = list(predict(found, Asked(texts=["number 4 !"], files=[rows])))
    assert [one.input for one in said] == ["number 4 !", "number 3", "number 4 !"]
    assert said[0] == said[2] and set(said[0].probabilities) == {"odd", "even", "prime"}
    assert capsys.readouterr().err == ""


def test_an_adapters_base_is_loaded_without_a_word(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its files have no head, which the adapter has: transformers would call it missing and ask for more training."""
    found, _ = run_of(tmp_path, base_folder(tmp_path / "base"))
    capfd.readouterr()
    assert len(list(predict(found, Asked(texts=["number 3"])))) == 1
    assert capfd.readouterr() == ("", "")


def test_nothing_and_nonsense_are_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    """No input, an unknown file, or no token to write: also where there is no model that could be loaded."""
    found, _ = run_of(tmp_path, WHOLE)
    shutil.rmtree(found.checkpoint)
    with pytest.raises(Refused, match="holds neither model/ nor adapter/"):
        predict(found, Asked(texts=["a"]))
    with pytest.raises(Refused, match="nothing to ask; give texts"):
        predict(found, Asked())
    (tmp_path / "blank.txt").write_text("\n \n")
    with pytest.raises(Refused, match="blank.txt: nothing to ask in it; give rows, lines or images"):
        predict(found, Asked(files=[tmp_path / "blank.txt"]))
    with pytest.raises(Refused, match="no such file"):
        predict(found, Asked(files=[tmp_path / "none.csv"]))
    with pytest.raises(Refused, match="--new-tokens 0: give a number of at least 1"):
        predict(found, Asked(texts=["a"], new_tokens=0))


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """The command's beginning, on a run that was trained."""
    found, _ = run_of(tmp_path, WHOLE)
    store, key = Store(tmp_path / "runs"), "0" * 64
    folders = {"checkpoint": found.checkpoint, "model": found.model, "data": found.data}
    outputs = {kind: store.put(kind, folder, stage_key=key, inputs={}) for kind, folder in folders.items()}
    trained = StageRecord(stage="train", key=key, state="done", outputs=outputs)
    store.runs.save(replace(found.run, stages=(trained,)))
    return ["predict", "latest", "--root", str(store.root)]


def test_the_command_prints_a_line_for_each_text_or_one_document(command: list[str]) -> None:
    """Texts come from arguments or from lines of the input; those that are cut are counted on stderr."""
    lines = CliRunner().invoke(app, command, input="number 1\n\nnumber 2 " + "!" * 90 + "\n")
    assert lines.exit_code == 0
    first, second = lines.stdout.splitlines()
    assert first.endswith("  number 1") and first.count("%") == 3 and "number 2" in second
    assert "note: 1 longer than the texts of training, and cut; the first is text 2" in lines.stderr
    document = json.loads(CliRunner().invoke(app, [*command, "number 1", "--json"]).stdout)
    (only,) = document["predictions"]
    assert document["run"] == "numbers-1" and only["input"] == "number 1"
    assert first.startswith(f"{only['label']} {only['probabilities'][only['label']]:.1%}, ")


@pytest.mark.parametrize(
    "asked",
    [
        ["predict", "latest", "number 1"],
        ["export", "latest", "--to", "out"],
        ["export", "latest", "--to", "out", "--push", "owner/name"],
    ],
)
def test_a_stored_model_that_was_damaged_is_neither_asked_nor_handed_over(
    asked: list[str], command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One flipped bit of its weights ends both with the name of the file, no answer and no folder."""
    monkeypatch.chdir(tmp_path)
    (weights,) = (tmp_path / "runs").glob("artifacts/checkpoint/*/model/model.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 0x40
    weights.write_bytes(content)
    ended = CliRunner().invoke(app, [*asked, *command[2:]])
    assert (ended.exit_code, ended.stdout) == (64, "")
    assert "model.safetensors: file of the checkpoint artifact is corrupt" in ended.stderr
    assert not (tmp_path / "out").exists()


def test_an_input_that_is_no_utf_8_is_refused(command: list[str]) -> None:
    """Bug: its bytes reached the tokenizer, whose TypeError nobody had foreseen; a byte order mark is skipped.
    Bug: a form feed made two inputs of a line."""
    ended = CliRunner().invoke(app, command, input=b"number 1\n\xff\xfe\n")
    assert (ended.exit_code, ended.stdout) == (64, "")
    assert "the input is not UTF-8" in ended.stderr and "give lines of text in UTF-8" in ended.stderr
    marked = CliRunner().invoke(app, command, input=b"\xef\xbb\xbfnumber\x0c1\r\n")
    assert marked.stdout.count("\n") == 1 and marked.stdout.endswith("  number 1\n")


def test_what_was_written_is_printed_as_it_is(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: spaces were printed for tabs."""
    made = Prediction(input="a\tb", text="\tif x:  \n\x1b[2J")
    # replaced: no small model writes just this
    monkeypatch.setattr("flows.hand_over.predict.predict", lambda *_: iter([made]))
    told = CliRunner().invoke(app, [*command, "a\tb"])
    assert told.stdout == "> a\tb\n\tif x:  \n\\x1b[2J\n\n"


GPT2 = {"model_type": "gpt2", "vocab_size": 264, "n_positions": 32, "n_embd": 16, "n_layer": 1, "n_head": 2}
GPT2 |= {"bos_token_id": 1, "eos_token_id": 2}


def test_chats_are_told_that_a_model_of_plain_texts_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: they were written by a template that training never saw, without a word."""
    found, _ = run_of(tmp_path, ModelRequest(task="causal-lm", config=GPT2))
    assert not PreparedData(found.data).info.chats
    template = "{% for one in messages %}{{ one.content }}{% endfor %}"
    (found.data / "tokenizer" / "chat_template.jinja").write_text(template)
    (tmp_path / "rows.jsonl").write_text('{"instruction": "1?"}\n{"prompt": "2?"}\n')
    capsys.readouterr()
    asked = list(predict(found, Asked(files=[tmp_path / "rows.jsonl"], new_tokens=1)))
    assert [one.input for one in asked] == ["1?", "2?"]
    told = capsys.readouterr().err
    assert "note: 1 written by the tokenizer's chat template, which the model was not trained with" in told
    assert "the first is " + str(tmp_path / "rows.jsonl: line 1") in told


def test_texts_are_asked_after_the_systems_message_of_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: a model that had met the same system's message in every row was asked without it, and without a word."""
    found, _ = run_of(tmp_path, ModelRequest(task="causal-lm", config={**GPT2, "vocab_size": 300, "n_positions": 128}))
    spec, told, asked = chat_spec(tmp_path / "t"), list[str](), list[list[str]]()
    user = {"role": "user", "content": "why?"}
    given = json_lines(tmp_path / "asked.jsonl", [{"messages": [{"role": "system", "content": "be brief"}, user]}])
    for name, systems in (("one", ["be brief"]), ("more", ["be brief", "be long", ""]), ("none", [""])):
        rows = [{"system": systems[n % len(systems)], "instruction": f"{n}?", "output": f"{n}."} for n in range(12)]
        data = prepared(tmp_path / name, json_lines(tmp_path / "r.jsonl", rows), spec, max_length=96)
        capsys.readouterr()
        predictions = predict(replace(found, data=data.folder), Asked(texts=["why?"], files=[given], new_tokens=24))
        asked.append([one.text for one in predictions])
        told.append(capsys.readouterr().err.split("\n")[0])
    assert asked[0][0] == asked[0][1], "the text is asked as the row with that message"
    assert asked[1] == asked[2] and asked[1][0] != asked[1][1]
    assert told[0] == "note: texts are asked after the system's message of training, 'be brief'"
    assert told[1].startswith("note: texts are asked without a system's message, of which training had several")
    assert "system" not in told[2]


def test_an_empty_message_of_the_system_is_one(tmp_path: Path) -> None:
    """Bug: it counted as none, and a chat template that has a message of its own for that asked otherwise than
    training did; a template writes an empty one."""
    rows = [{"messages": [{"role": "system", "content": ""}, *chat["messages"]]} for chat in chats(12)]
    data = prepared(tmp_path / "d", json_lines(tmp_path / "r.jsonl", rows), chat_spec(tmp_path / "t"), max_length=96)
    assert data.info.systems == ({"role": "system", "content": ""},)


def test_the_message_of_a_developer_is_one_of_training_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bug: only the role system counted. Of data from before, or that lie on devices, nothing is known; of the first,
    a note says so."""
    found, _ = run_of(tmp_path, ModelRequest(task="causal-lm", config={**GPT2, "vocab_size": 300, "n_positions": 128}))
    said = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": "1?"}]
    rows = [{"messages": [*said, {"role": "assistant", "content": f"{n}."}]} for n in range(12)]
    source = json_lines(tmp_path / "r.jsonl", rows)
    data = prepared(tmp_path / "d", source, chat_spec(tmp_path / "t"), max_length=96)
    (tmp_path / "asked.jsonl").write_text(json.dumps({"messages": said}) + "\n")
    capsys.readouterr()
    asked = Asked(texts=["1?"], files=[tmp_path / "asked.jsonl"], new_tokens=24)
    one, other = predict(replace(found, data=data.folder), asked)
    assert one.text == other.text
    assert "note: texts are asked after the developer's message of training, 'be brief'" in capsys.readouterr().err
    info = json_io.dump(data.info)
    (data.folder / "data.json").write_text(json.dumps({key: each for key, each in info.items() if key != "systems"}))
    list(predict(replace(found, data=data.folder), asked))
    assert f"was not written down then, and fleetune rerun {found.run.id} does" in capsys.readouterr().err
    request = DataRequest(source=str(source), max_length=96)
    local = (LocalSource(device="a", digest="", samples=1),)
    write_data(Preparation(request=request, spec=chat_spec(tmp_path / "t"), seed=0, local=local), tmp_path / "l")
    assert PreparedData(tmp_path / "l").info.systems == ()


def test_the_name_of_a_file_is_no_text(command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: `predict latest rows.csv` classified these words. From the input, they may be meant."""
    (tmp_path / "rows.csv").write_text("text\nnumber 3\n")
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(app, [*command, "number 1", "rows.csv"])
    assert (ended.exit_code, ended.stdout) == (64, "")
    assert "rows.csv: a file of this name is here; give --file rows.csv" in " ".join(ended.stderr.split())
    assert CliRunner().invoke(app, command, input="rows.csv").stdout.endswith("  rows.csv\n")


def test_what_is_odd_about_predictions_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bug: nothing told a text that the model had not ended, nor, in a notebook, one that was cut."""
    written, _ = run_of(tmp_path / "gpt2", ModelRequest(task="causal-lm", config=GPT2))
    found, _ = run_of(tmp_path / "bert", WHOLE)
    capsys.readouterr()
    (one,) = predict(written, Asked(texts=["number 1"], new_tokens=3))
    assert one.unfinished
    assert capsys.readouterr().err == "note: 1 went on when --new-tokens 3, or what the model takes, was full\n"
    list(predict(found, Asked(texts=["number 1", "number 2" + "!" * 90])))
    assert capsys.readouterr().err == "note: 1 longer than the texts of training, and cut; the first is text 2\n"


def test_a_notebook_asks_about_one_text_or_a_column_of_them(tmp_path: Path) -> None:
    """Bug: of a text that was no list, each letter was asked about; a column of a data frame ended in a ValueError."""
    store, record = stored_run(tmp_path, WHOLE)
    run = FinishedRun(record, store)
    assert list(run.predict("number 1").input) == ["number 1"]
    assert list(run.predict(pd.Series(["number 1", "number 2"])).input) == ["number 1", "number 2"]
