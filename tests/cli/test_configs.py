"""Run files become configs: sections by name, changes from the command line, paths, refusals."""

from pathlib import Path

import pytest

from fleetune.contracts import json_io
from fleetune.contracts.run_config import RunConfig
from fleetune.errors import Refused
from flows import configs

RUN = """
name: small
fleet: two
model: {task: causal-lm, config: {model_type: gpt2}}
data: {source: stdlib-sources}
strategy: dp
training: {rounds: 3, batch_samples: 8, micro_batch_samples: 4}
"""


@pytest.fixture
def run_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run file in a folder of configs, with one fleet and one strategy beside it; the working directory is
    elsewhere."""
    for name, content in {
        "configs/runs/small.yaml": RUN,
        "configs/fleets/two.yaml": "devices: [{name: fast}, {name: slow, emulate: {cores: 0.5}}]\n",
        "configs/strategies/dp.yaml": "name: dp\n",
        "configs/strategies/pp.yaml": "name: pp\noptions: {a: {b: 1, c: 2}, groups: [[fast], [slow]]}\n",
        "configs/fleets/thought.yaml": "devices: [{name: far, simulated: board}]\nlinks: {mbit_per_s: 100}\n",
        "configs/devices/board.yaml": "memory_bytes: 1000\nspeeds: [{flops_per_s: 1e9}]\n",
        "configs/devices/card.yaml": "memory_bytes: 2000\nspeeds: [{flops_per_s: 2e9}]\n",
        "elsewhere/there.csv": "text,label\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "configs" / "runs" / "small.yaml"


def refusal(run_file: Path, *sets: str) -> str:
    """The message of the Refused that loading raises."""
    with pytest.raises(Refused) as refused:
        configs.load(run_file, sets)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_sections_by_name(run_file: Path) -> None:
    """A section that is a name is read from the folder of its kind."""
    config = configs.load(run_file)
    assert [device.name for device in config.fleet.devices] == ["fast", "slow"]
    assert config.strategy.name == "dp"
    assert config.training.rounds == 3


def test_a_run_file_elsewhere_has_the_projects_names(run_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: the form offered strategies, fleets and models that a run file outside of configs/ could not name. Files
    beside the run file come first.
    """
    project = run_file.parents[2]
    monkeypatch.chdir(project)
    mine = project / "elsewhere" / "mine" / "mine.yaml"
    mine.parent.mkdir()
    mine.write_text(RUN)
    config = configs.load(mine, ["strategy=pp", "strategy.options.groups=[[slow], [fast]]"])
    assert [device.name for device in config.fleet.devices] == ["fast", "slow"] and config.strategy.name == "pp"
    assert "there is no three.yaml" in (said := refusal(mine, "fleet=three")) and "names are thought, two" in said
    own = mine.parent / "fleets" / "two.yaml"
    own.parent.mkdir()
    own.write_text("devices: [{name: own}]\n")
    assert [device.name for device in configs.load(mine).fleet.devices] == ["own"]
    assert "its names are two" in refusal(mine, "fleet=three")


def test_a_strategy_goes_by_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a run file in a folder of one's own, without other files, could not say `strategy: asteroid` as the README
    does. Other words are still refused.
    """
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        "name: mine\nfleet: {devices: [{name: here}]}\nmodel: {task: causal-lm, config: {model_type: gpt2}}\n"
        "data: {source: docstrings}\ntraining: {rounds: 1}\nstrategy: asteroid\n"
    )
    assert configs.load(mine).strategy.name == "asteroid"
    assert configs.load(mine, ["strategy=dp"]).strategy.name == "dp"
    assert "there is no asteroit.yaml" in refusal(mine, "strategy=asteroit")


def test_use_and_override(run_file: Path) -> None:
    """`use: NAME` takes the file, and the keys beside it win, mapping by mapping."""
    changed = RUN.replace("strategy: dp", "strategy: {use: pp, options: {a: {b: 7}, groups: [[slow]]}}")
    run_file.write_text(changed)
    assert configs.load(run_file).strategy.options == {"a": {"b": 7, "c": 2}, "groups": [["slow"]]}


def test_sections_beside_a_lone_run_file(run_file: Path) -> None:
    """A run file outside runs/ also finds the section folders beside itself."""
    lone = run_file.parents[1] / "lone.yaml"
    lone.write_text(RUN)
    assert configs.load(lone) == configs.load(run_file)


def test_sets(run_file: Path) -> None:
    """--set changes values, whole sections, members of lists by name, and makes mappings that were absent."""
    config = configs.load(
        run_file,
        [
            "training.rounds=10",
            "training.learning_rate=1e-4",
            "training.clip_norm=null",
            "strategy=pp",
            "strategy.options.groups=[[fast, slow]]",
            "fleet.devices.slow.emulate.cores=0.3",
            "fleet.devices.fast.emulate.cores=0.6",
            "model.config.n_layer=2",
        ],
    )
    assert (config.training.rounds, config.training.learning_rate, config.training.clip_norm) == (10, 1e-4, None)
    assert config.strategy.options["groups"] == [["fast", "slow"]]
    assert [device.emulate.cores for device in config.fleet.devices] == [0.6, 0.3]
    assert config.model.config == {"model_type": "gpt2", "n_layer": 2}


def test_simulated_devices_by_name(run_file: Path) -> None:
    """A device's speeds are read from configs/devices, with changes before and after, and links are changed alike."""
    sets = ["fleet=thought", "fleet.devices.far.simulated.memory_bytes=5", "fleet.links.mbit_per_s=1000"]
    fleet = configs.load(run_file, sets).fleet
    [device] = fleet.devices
    assert device.simulated is not None and fleet.links is not None
    assert (device.simulated.memory_bytes, device.simulated.speeds[0].flops_per_s) == (5, 1e9)
    assert fleet.links.mbit_per_s == 1000
    other = configs.load(run_file, ["fleet=thought", "fleet.devices.far.simulated=card"]).fleet.devices[0]
    assert other.simulated is not None and other.simulated.memory_bytes == 2000
    assert configs.load_fleet(run_file.parents[1] / "fleets" / "thought.yaml").simulated == ("far",)


def test_changed_again(run_file: Path) -> None:
    """A recorded config can be changed without its run file, and is validated again."""
    config = configs.load(run_file)
    assert configs.with_changes(config, ["training.rounds=4"], "RUN").training.rounds == 4
    assert configs.with_changes(config, [], "RUN") == config
    with pytest.raises(Refused, match=r"training: rounds must be a number above 0 \(got -1\)"):
        configs.with_changes(config, ["training.rounds=-1"], "RUN")


def test_another_model_does_not_keep_the_commit_of_the_old_one(run_file: Path) -> None:
    """Bug: a rerun with another model.source asked the hub for that model at the old one's commit."""
    commit = "a" * 40
    pinned = ["model={task: causal-lm, source: someone/old}", f"model.revision={commit}"]
    config = configs.load(run_file, pinned)
    assert config.model.revision == commit
    new = configs.with_changes(config, ["model.source=someone/new"], "RUN").model
    assert (new.source, new.revision) == ("someone/new", None)
    for sets in (["model.source=someone/new", "model.revision=v2"], ["model.revision=v2", "model.source=someone/new"]):
        assert configs.with_changes(config, sets, "RUN").model.revision == "v2"
    assert configs.with_changes(config, ["model.source=someone/old", "seed=3"], "RUN").model.revision == commit


def test_what_is_promoted_is_split_by_content_from_its_first_run_on(run_file: Path) -> None:
    """Bug: the split of an explicit false was overridden in silence, and records of runs before showed true."""
    promote = "promote={score: loss}"
    assert configs.load(run_file, [promote]).data.split_by_content
    assert not configs.load(run_file, [promote, "data.split_by_content=false"]).data.split_by_content
    plain = configs.load(run_file)
    assert not plain.data.split_by_content and configs.with_changes(plain, [promote], "plain").data.split_by_content
    before = json_io.load(RunConfig, {**json_io.dump(plain), "promote": {"score": "loss"}}, "before")
    assert not configs.with_changes(before, ["seed=3"], "before").data.split_by_content


def test_patterns_and_validation_are_relative_to_the_run_file(run_file: Path) -> None:
    """data.files, with patterns, and data.validation become absolute; a pattern that nothing matches is refused."""
    for name in ("b.jsonl", "a.jsonl", "held.jsonl"):
        (run_file.parent / name).write_text('{"text": "x"}\n')
    sets = ("data={files: ['[ab].jsonl'], validation: held.jsonl}",)
    data = configs.load(run_file, sets).data
    assert data.files == (str(run_file.parent / "[ab].jsonl"),)
    assert data.validation == str(run_file.parent / "held.jsonl")
    assert configs.load(run_file, ("data={files: [there.csv], validation: 0.25}",)).data.held_out_share == 0.25
    with pytest.raises(Refused, match=r"data\.files: no file matches 'c\*\.jsonl'; looked for .*runs/c\*\.jsonl"):
        configs.load(run_file, ("data={files: ['c*.jsonl']}",))


def test_a_file_of_data_that_is_a_link_keeps_its_name(run_file: Path) -> None:
    """Bug: links became their targets, which have no suffix in the hub's cache, and so the format was not known."""
    (run_file.parent / "blob").write_text("text,label\n")
    link = run_file.parent / "train.csv"
    link.symlink_to("blob")
    data = configs.load(run_file, ["data.source=train.csv", "data.validation=train.csv"]).data
    assert (data.source, data.validation) == (str(link),) * 2


def test_a_link_whose_target_has_a_name_is_followed(run_file: Path) -> None:
    """Images that a table names lie beside the table; a link need not have the format's suffix."""
    (run_file.parent / "far").mkdir()
    table = run_file.parent / "far" / "rows.csv"
    table.write_text("text,label\n")
    for name in ("latest", "train.csv"):
        (run_file.parent / name).symlink_to(table)
        assert configs.load(run_file, [f"data.source={name}"]).data.source == str(table)


def test_a_link_into_git_annex_keeps_its_name(run_file: Path) -> None:
    """Bug: its target is called by the content, and may have the link's suffix: a run of train.csv was one of
    MD5E-s12--0a1b.csv."""
    key = run_file.parent / ".git" / "annex" / "objects" / "MD5E-s12--0a1b.csv" / "MD5E-s12--0a1b.csv"
    key.parent.mkdir(parents=True)
    key.write_text("text,label\n")
    link = run_file.parent / "train.csv"
    link.symlink_to(key)
    assert configs.load(run_file, ["data.source=train.csv"]).data.source == str(link)


def test_a_path_on_another_machine_is_left_as_it_was_given(run_file: Path) -> None:
    """Bug: this machine's symlinks were followed in the absolute path of a device's own data, which lie elsewhere."""
    folder = run_file.parents[2] / "elsewhere"
    link = folder.parent / "link"
    link.symlink_to(folder)
    own = {"fast": str(link / "there.csv"), "slow": "there.csv"}
    sets = ("strategy={name: lola-deft}", f"data={{source: stdlib-sources, local: {own}}}")
    assert configs.load(run_file, sets).data.local == {**own, "slow": str(folder / "there.csv")}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("training.rounds", "--set training.rounds: write KEY=VALUE such as training.rounds=10"),
        ("=3", "write KEY=VALUE"),
        ("training..rounds=3", "write KEY=VALUE"),
        ("training.rounds=[1", "--set training.rounds=[1: line 1"),
        ("training.rounds.deep=1", "training.rounds is 3, which has no keys inside; set training.rounds itself"),
        ("fleet.devices.tiny.emulate.cores=1", "fleet.devices has no member named 'tiny'; its names are fast, slow"),
        ("training.round=5", "training.round: unknown key; allowed are rounds, batch_samples"),
        (
            "trainings.rounds=5",
            "trainings: unknown key; allowed are name, seed, fleet, model, data, training, strategy",
        ),
        ("training.rounds=many", "training.rounds: must be a whole number"),
        ("training.micro_batch_samples=3", "micro_batch_samples 3 does not divide batch_samples 8; choose a divisor"),
        ("fleet=three", "there is no three.yaml in"),
        ("fleet=three", "its names are thought, two"),
        ("fleet.devices.slow.simulated=bored", "fleet.devices.slow.simulated: there is no bored.yaml in"),
        ("fleet.devices.slow.simulated=bored", "its names are board, card"),
        ("fleet.devices.slow={name: slow, simulated: board}", "slow are simulated and fast are real"),
        ("fleet.links.mbit_per_s=10", "links are given, but fast, slow run as processes"),
        ("fleet=../fleets/two", "'../fleets/two' is not a name"),
        ("fleet=7", "fleet: it is 7; allowed are a mapping or the name of a file in fleets/"),
        ("strategy=fast", "its names are dp, pp"),
        ("strategy.name=magic", "strategy.name is 'magic'; allowed are "),
        ("data.source=none.csv", "data.source: 'none.csv' does not exist; looked for "),
        ("model.source=./none", "model.source: './none' does not exist"),
        ("model.lora={targets: [q], start: adapter}", "model.lora.start: 'adapter' does not exist"),
        ("data.source=/" + "x" * 5000, "does not exist"),
    ],
)
def test_refused(run_file: Path, change: str, said: str) -> None:
    """A refusal names the key, the value and what is allowed."""
    assert said in refusal(run_file, change)


def test_refusal_names_the_file_of_the_section(run_file: Path) -> None:
    """The message about an unknown key in a section's own file names that file."""
    fleet = run_file.parents[1] / "fleets" / "two.yaml"
    fleet.write_text("devices: [{name: fast, cores: 2}]\n")
    said = refusal(run_file)
    assert (
        "fleet.devices.0.cores: unknown key; allowed are name, launcher, engine, accelerator, threads, emulate, "
        "simulated" in said
    )
    assert str(fleet) in said


def test_missing_required_key(run_file: Path) -> None:
    """A missing section is named."""
    run_file.write_text(RUN.replace("model:", "# model:"))
    assert refusal(run_file) == f"{run_file}: model: this key is required"


def test_paths(run_file: Path) -> None:
    """A data file is looked for beside the run file, then in the working directory; hub and built-in names stay."""
    assert configs.load(run_file, ["data.source=there.csv"]).data.source == str(Path.cwd() / "there.csv")
    beside = run_file.parent / "there.csv"
    beside.write_text("text,label\n")
    assert configs.load(run_file, ["data.source=there.csv"]).data.source == str(beside)
    assert configs.load(run_file, ["data.source=someone/something"]).data.source == "someone/something"
    (Path.cwd() / "digits").mkdir()
    assert configs.load(run_file, ["data.source=digits"]).data.source == "digits"


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        ('{cron: "0 2 * *"}', "minute, hour"),
        ('{cron: "0 2 * * * *"}', "minute, hour"),
        ('{cron: "@daily"}', "minute, hour"),
        ('{cron: "61 2 * * *"}', "minute, hour"),
        ('{cron: "R 2 * * *"}', "minute, hour"),
        ('{cron: "H(0-3) 2 * * *"}', "minute, hour"),
        ('{cron: "0 0 31 2 *"}', "a day that does not exist"),
        ('{cron: "0 2 * * *", timezone: Europe/Bonn}', "Europe/Bonn"),
    ],
)
def test_a_time_that_never_comes(run_file: Path, schedule: str, says: str) -> None:
    """A cron expression that Prefect would not take, or at which its scheduler would stop, is refused with the file."""
    run_file.write_text(RUN + f"schedule: {schedule}\n")
    with pytest.raises(Refused, match=says) as error:
        configs.load(run_file)
    assert "small.yaml: schedule." in str(error.value)


def test_every_night_at_two(run_file: Path) -> None:
    """A valid schedule is read as it is written."""
    run_file.write_text(RUN + 'schedule: {cron: "0 2 * * mon-fri", timezone: Europe/Berlin, active: false}\n')
    schedule = configs.load(run_file).schedule
    assert schedule is not None and (schedule.cron, schedule.active) == ("0 2 * * mon-fri", False)
