"""Scores of attention heads: their computation in a measuring process, and the subnets of the profile."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from fleetune.contracts import json_io
from fleetune.contracts.fleet import Device, Fleet, ModelSpeed, SimulatedDevice
from fleetune.contracts.profile import Profile
from fleetune.contracts.run_config import Lora, ModelRequest
from fleetune.data.prepared_data import PreparedData, batch_indices
from fleetune.errors import FleetuneError, Infeasible, Refused, TryAgain
from fleetune.launching import LocalSites
from fleetune.models.attention_heads import AttentionHead, ParameterSlice, attention_heads, find_blocks
from fleetune.models.graph import parse_graph
from fleetune.models.init_weights import INIT_WEIGHTS, initial_model
from fleetune.models.randomness import RandomContext
from fleetune.models.skeleton import saved_configuration, skeleton
from fleetune.profiling import measuring_process
from fleetune.profiling.cache import MeasurementCache
from fleetune.profiling.head_scores import first_round_losses
from fleetune.profiling.head_subnets import SubnetParts
from fleetune.profiling.messages import Scores, parse_scores
from fleetune.profiling.profile import profile
from fleetune.profiling.task import ProfilingTask, ScoringTask
from fleetune.training.batches import Batches
from tests.support.preparation.instances import prepared_once
from tests.support.profiling.instances import Scripted, ScriptedJob, costs, measure_task, profiling_task
from tests.support.training.model_families import BY_NAME, Family, data_request, model_request

VIT = BY_NAME["vit"]
SEED, BATCH, MICRO_BATCH = 3, 12, 4
SCORING = ScoringTask(seed=SEED, batch_samples=BATCH, micro_batch_samples=MICRO_BATCH)
LORA = Lora(r=2, targets=("q_proj", "v_proj"))


class Ready:
    """A tiny prepared model and its heads."""

    def __init__(self, folder: Path, family: Family = VIT, **changes: Any) -> None:
        self.folder = folder
        self.request: ModelRequest = model_request(family, dropout=False, **changes)
        _, self.folders = prepared_once(folder, self.request, data_request(family, folder), SEED)
        self.graph = parse_graph((self.folders.model / "graph.json").read_bytes(), "graph")
        self.config = saved_configuration(self.folders.model / "model")
        self.heads = attention_heads(find_blocks(self.graph, self.skeleton(), self.config))

    def skeleton(self) -> torch.nn.Module:
        """The model without weights."""
        return skeleton(self.config, self.request)

    def whole(self) -> torch.nn.Module:
        """The unsplit model with the initial weights."""
        return initial_model(self.config, self.request, self.folders.model / INIT_WEIGHTS)


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Ready:
    """A model of two blocks with two heads each."""
    return Ready(tmp_path_factory.mktemp("vit"))


Answered = tuple[int, list[dict[str, Any]]]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Answered]:
    """Runs a measuring process in this one; returns its exit code and lines."""

    def asked(ready: Ready, **changes: Any) -> Answered:
        task = measure_task(ready.folders, **{"model": ready.request, "scoring": SCORING, **changes})
        json_io.write(task, ready.folder / "task.json")
        monkeypatch.setattr("sys.argv", ["worker", "--task", str(ready.folder / "task.json")])
        capsys.readouterr()
        code = measuring_process.main()
        return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return asked


def scores(answered: Answered) -> Scores:
    """The scores of a process that succeeded."""
    code, lines = answered
    assert code == 0
    return parse_scores(lines[-1], "test")


def by_hand(ready: Ready) -> tuple[dict[str, torch.Tensor], list[dict[str, torch.Tensor]]]:
    """Weights of the unsplit model, and torch's own gradients for every micro-batch of the first round; zeros for
    frozen parameters."""
    model, data = ready.whole(), PreparedData(ready.folders.data)
    rows = batch_indices(data.size("train"), BATCH, SEED, 0)
    found = []
    for first in range(0, BATCH, MICRO_BATCH):
        given = {n: torch.from_numpy(a) for n, a in data.rows("train", rows[first : first + MICRO_BATCH]).items()}
        labels = given.pop("labels")
        logits = model(**given).logits
        model.zero_grad()
        (functional.cross_entropy(logits, labels) * MICRO_BATCH / BATCH).backward()
        found.append({n: p.grad.clone() if p.grad is not None else p * 0 for n, p in model.named_parameters()})
    return dict(model.named_parameters()), found


def total(pieces: tuple[ParameterSlice, ...], tensors: dict[str, torch.Tensor], power: int) -> float:
    """Sum of |entry| ** power over slices."""
    return sum(float(piece.of(tensors[piece.parameter].detach()).double().abs().pow(power).sum()) for piece in pieces)


@pytest.mark.parametrize("kind", ["all weights", "adapters"])
def test_scores_are_those_of_autograd_on_the_unsplit_model(
    kind: str, vit: Ready, tmp_path: Path, ask: Callable[..., Answered]
) -> None:
    """Scores of every head and micro-batch equal autograd's; with LoRA only adapters have gradients, and frozen weights
    count in the magnitude."""
    ready = vit if kind == "all weights" else Ready(tmp_path, lora=LORA)
    weights, gradients = by_hand(ready)
    found = scores(ask(ready)).heads
    assert [one.name for one in found] == [head.name for head in ready.heads] and len(found) == 4
    for one, head in zip(found, ready.heads, strict=True):
        assert one.fisher == pytest.approx([total(head.slices, each, 2) for each in gradients], rel=1e-5)
        assert one.gradient_magnitude == pytest.approx(sum(total(head.slices, each, 1) for each in gradients), rel=1e-5)
        assert one.weight_magnitude == pytest.approx(total(head.slices, weights, 1))
        assert min(one.fisher) > 0


def test_heads_and_all_the_rest_add_up_to_the_squared_norm_of_the_gradient(
    vit: Ready, ask: Callable[..., Answered]
) -> None:
    """The Fisher scores of all heads and of the rest add up to the squared norm, so nothing is counted twice or left
    out."""
    _, gradients = by_hand(vit)
    found = scores(ask(vit)).heads
    for number, each in enumerate(gradients):
        rest = {name: gradient.clone() for name, gradient in each.items()}
        for piece in (piece for head in vit.heads for piece in head.slices):
            piece.of(rest[piece.parameter]).zero_()
        whole, outside = (sum(float(g.double().square().sum()) for g in some.values()) for some in (each, rest))
        assert 0 < outside < whole
        assert sum(one.fisher[number] for one in found) + outside == pytest.approx(whole, rel=1e-5)


def test_the_same_seed_gives_the_same_bytes_and_another_one_other_samples(
    vit: Ready, ask: Callable[..., Answered]
) -> None:
    """Equal seeds give equal bytes on one machine; another seed gives other samples, and the same weight magnitudes."""
    first, again = ask(vit)[1][-1], ask(vit)[1][-1]
    assert json.dumps(first) == json.dumps(again)
    other = scores(ask(vit, scoring=replace(SCORING, seed=4)))
    for one, two in zip(parse_scores(first, "test").heads, other.heads, strict=True):
        assert one.fisher != two.fisher and one.weight_magnitude == two.weight_magnitude


def test_micro_batches_are_those_of_training(vit: Ready) -> None:
    """Scoring sees the rows of training in the same order, with the same dropout draws."""
    seen: list[tuple[dict[int, torch.Tensor], int, RandomContext]] = []

    class Watched:
        """Stand-in for the model."""

        graph, device = vit.graph, torch.device("cpu")

        def run(self, values: dict[int, torch.Tensor], samples: int, draws: RandomContext) -> dict[int, torch.Tensor]:
            """Record the arguments."""
            seen.append((values, samples, draws))
            return {vit.graph.output: torch.zeros(samples, 10, requires_grad=True)}

    data = PreparedData(vit.folders.data)
    losses = [loss.item() for loss in first_round_losses(Watched(), data, SCORING)]  # type: ignore[arg-type]
    assert losses == pytest.approx([np.log(10) / 3] * 3)
    lane = SimpleNamespace(name="main")
    plan = SimpleNamespace(
        micro_batch_samples=MICRO_BATCH,
        lanes=(lane,),
        micro_batches_of=lambda lane: BATCH // MICRO_BATCH,
        collector="",
    )
    batches = Batches(vit.folders.data, plan, lane, SEED, torch.device("cpu"))  # type: ignore[arg-type]
    batches.start_step(0, with_targets=True)
    for number, (values, samples, draws) in enumerate(seen):
        (given,) = batches.inputs(number, (0, MICRO_BATCH)).values()
        assert samples == MICRO_BATCH and torch.equal(values[vit.graph.inputs["pixel_values"]], given)
        assert draws == RandomContext(SEED, 0, number, 0, MICRO_BATCH)


def test_a_process_that_scores_says_what_it_needs_and_how_far_it_is(vit: Ready, ask: Callable[..., Answered]) -> None:
    """A scoring process prints its memory needs, its start, its progress and its scores, a line each."""
    code, lines = ask(vit)
    assert code == 0
    assert [line["event"] for line in lines] == ["loading", "measuring", "progress", "progress", "progress", "scores"]
    parameters = dict(vit.skeleton().named_parameters())
    of_heads = {piece.parameter for head in vit.heads for piece in head.slices}
    held = [*parameters.values(), *(parameters[name] for name in of_heads)]
    assert lines[0]["unit_bytes"] == 4 * sum(p.numel() for p in held)
    assert [(line["done"], line["total"]) for line in lines[2:5]] == [(1, 3), (2, 3), (3, 3)]


def test_a_device_that_cannot_hold_the_model_is_infeasible(vit: Ready, ask: Callable[..., Answered]) -> None:
    """A device without memory for the whole model is infeasible before any weight is loaded; the message names the
    bytes."""
    code, lines = ask(vit, memory_bytes=1 << 20)
    assert code == 65 and [line["event"] for line in lines] == ["loading", "error"]
    assert "scores need the whole model at once, 0.00 GB with its gradients beside" in lines[-1]["message"]


LEAVES = (
    *("attention.q_proj", "attention.k_proj", "attention.v_proj", "attention.o_proj"),
    *("mlp.fc1", "mlp.activation_fn", "mlp.fc2"),
)


def test_parts_are_of_every_unit_that_holds_weights_of_heads(tmp_path: Path, vit: Ready) -> None:
    """A layer is divided by the number of heads, and so is the computation between layers; of a whole block everything
    but its norms is divided."""
    norms, block = 4 * 32, 4 * 32 * 33 + 64 * 33 + 32 * 65 + 4 * 32
    of_block = SubnetParts(vit.graph, vit.skeleton()).of(vit.heads[2])
    assert [(part.unit, part.share) for part in of_block] == [("vit.layers.1", pytest.approx((1 - norms / block) / 2))]
    fine = Ready(tmp_path, granularity="layer")
    parts = SubnetParts(fine.graph, fine.skeleton()).of(fine.heads[3])
    assert [(part.unit, part.share) for part in parts] == [(f"vit.layers.1.{leaf}", 0.5) for leaf in LEAVES]


def test_hidden_units_that_are_left_over_make_a_part_larger(tmp_path: Path) -> None:
    """33 hidden units are 17 for one head and 16 for the other; adapters count with their layer."""
    odd = Family("odd", VIT.task, {**VIT.config, "intermediate_size": 33})
    ready = Ready(tmp_path, odd, granularity="layer", lora=LORA)
    parts = SubnetParts(ready.graph, ready.skeleton())
    for head, fraction in zip(ready.heads, (17 / 33, 16 / 33) * 2, strict=True):
        shares = {part.unit.rpartition(".")[2]: part.share for part in parts.of(head)}
        assert shares == {
            **dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), 0.5),
            **dict.fromkeys(("fc1", "activation_fn", "fc2"), fraction),
        }


def scored_line(found: tuple[AttentionHead, ...]) -> dict[str, Any]:
    """The result message of a process that scores."""
    one = {"weight_magnitude": 2.0, "gradient_magnitude": 1.0, "fisher": [0.5, 0.25]}
    return {"event": "scores", "heads": [{"name": head.name, **one} for head in found]}


def scripted(vit: Ready, folder: Path, scorer: ScriptedJob | None = None) -> tuple[ProfilingTask, Scripted]:
    """Devices ann and bob, of which bob has more memory, in a task that asks for scores."""
    jobs = {name: ScriptedJob([costs(len(vit.graph.units), 1.0)], 0) for name in ("ann", "bob")}
    launcher = Scripted(jobs, scorer or ScriptedJob([scored_line(vit.heads)], 0))
    task = profiling_task(folder, launcher, ("ann", "bob"), vit.request, data_request(VIT, folder))
    devices = tuple(replace(each, memory_bytes=(8 << 30) + (each.name == "bob")) for each in task.fleet.devices)
    return replace(task, fleet=replace(task.fleet, devices=devices), scores=True), launcher


def test_the_device_with_the_most_memory_scores_once_all_have_measured(vit: Ready, tmp_path: Path) -> None:
    """The device with the most memory scores, at its own pace; the profile lists the heads block by block with these
    scores."""
    task, launcher = scripted(vit, tmp_path)
    notes: list[str] = []
    made = profile(replace(task, note=notes.append))
    assert notes == ["bob: scored 4 heads on the 2 micro-batches of the first round"]
    assert launcher.given.keys() == {"ann", "bob"}
    (asked,) = launcher.scored
    assert (asked.device, asked.cores, asked.memory_bytes) == ("bob", 0.5, (8 << 30) + 1)
    assert asked.scoring == ScoringTask(seed=3, batch_samples=12, micro_batch_samples=6)
    assert [subnet.name for subnet in made.subnets] == [f"vit.layers.{b}#{h}" for b in (0, 1) for h in (0, 1)]
    assert {subnet.fisher for subnet in made.subnets} == {(0.5, 0.25)}
    assert json_io.read(Profile, tmp_path / "profile" / "profile.json") == made
    assert launcher.scorer is not None and launcher.scorer.read == 1


def test_without_scores_the_profile_is_what_it_was(vit: Ready, tmp_path: Path) -> None:
    """Without scores the profile and the device tasks have the same bytes, except for the heads and their gates."""
    profile(scripted(vit, tmp_path / "with")[0])
    task, launcher = scripted(vit, tmp_path / "without")
    profile(replace(task, scores=False))
    assert not launcher.scored
    plain = json.loads((tmp_path / "with" / "profile" / "profile.json").read_text())
    assert plain.pop("subnets") and all(times.pop("gates") for times in plain["times"])
    text = (tmp_path / "without" / "profile" / "profile.json").read_text()
    assert text == json.dumps(plain, indent=1, ensure_ascii=False) + "\n"
    given = json.loads((tmp_path / "without" / "work" / "profiling" / "ann" / "task.json").read_text())
    assert "scoring" not in given and given["passes"] == 5


def test_scores_are_never_kept(vit: Ready, tmp_path: Path) -> None:
    """A second run uses the cached times and scores again; a run without scores uses the cache, too. Only a profile
    with scores says what gates cost."""
    asked = []
    for number, wanted in enumerate((True, True, False)):
        task, launcher = scripted(vit, tmp_path)
        made = profile(replace(task, scores=wanted, cache=MeasurementCache(tmp_path / "kept", f"run-{number}")))
        asked.append((sorted(launcher.given), len(launcher.scored)))
        assert all((times.gates is not None) is wanted for times in made.times)
    assert asked == [(["ann", "bob"], 1), ([], 1), ([], 0)]


@pytest.mark.parametrize(
    ("job", "kind", "said"),
    [
        (
            ScriptedJob(
                [{"event": "loading", "runtime_bytes": 390_000_000, "unit_bytes": 9e9}], 137, out_of_memory=True
            ),
            Infeasible,
            r"device bob ran out of its 8\.59 GB while scoring vit: a worker needs about 0\.39 GB before it holds any "
            r"unit and 9\.00 GB for the whole model, activations aside; give it more memory or lower "
            r"training\.micro_batch_samples; log: .*/scoring/bob/log",
        ),
        (ScriptedJob([{"event": "error", "message": "no"}], 64), Refused, "device bob could not be scored: no"),
        (ScriptedJob([{"event": "measuring"}], 1), TryAgain, r"device bob: scoring ended with .*/scoring/bob/log"),
        (ScriptedJob([costs(1, 1.0)], 0), TryAgain, "device bob: scoring"),
    ],
)
def test_a_device_that_cannot_score_is_named(
    job: ScriptedJob, kind: type[FleetuneError], said: str, vit: Ready, tmp_path: Path
) -> None:
    """The error names the device and the reason, and its type tells whether trying again can help."""
    with pytest.raises(kind, match=said) as failure:
        profile(scripted(vit, tmp_path, job)[0])
    assert failure.type is kind
    assert not (tmp_path / "profile" / "profile.json").exists()


@pytest.mark.parametrize(
    ("name", "changes", "why"),
    [
        ("resnet", {}, "ResNetConfig has no blocks with dense layers; supported are"),
        (
            "vit",
            {"freeze": (r"vit\.layers",)},
            "no weight of any head is trained, so none has a score; let model.freeze",
        ),
    ],
)
def test_a_model_that_cannot_be_scored_is_refused_before_anything_is_measured(
    name: str, changes: dict[str, Any], why: str, tmp_path: Path
) -> None:
    """A model without heads to score is refused before any process starts."""
    launcher = Scripted({})
    request, data = model_request(BY_NAME[name], dropout=True, **changes), data_request(BY_NAME[name], tmp_path)
    task = replace(profiling_task(tmp_path, launcher, ("ann",), request, data), scores=True)
    with pytest.raises(Refused, match=f"profile.scores: {why}"):
        profile(task)
    assert not launcher.given and not (tmp_path / "profile" / "profile.json").exists()


def test_real_and_simulated_fleets_find_the_same_heads(
    vit: Ready, tmp_path: Path, ask: Callable[..., Answered]
) -> None:
    """A real device, this machine for a simulated one, and this process compute the same scores."""
    usual = profiling_task(tmp_path, Scripted({}), ("ann",), vit.request, data_request(VIT, tmp_path))
    task = replace(
        usual,
        fleet=Fleet(devices=(Device(name="ann", memory_bytes=8 << 30, cores=1, fingerprint="f"),)),
        training=replace(usual.training, batch_samples=BATCH, micro_batch_samples=MICRO_BATCH),
        scores=True,
        sites=LocalSites(),
    )
    real = profile(replace(task, output=tmp_path / "real"))
    simulated = SimulatedDevice(memory_bytes=1 << 20, speeds=(ModelSpeed(flops_per_s=1e9),))
    absent = Fleet(devices=(Device(name="ann", memory_bytes=1 << 20, cores=1, fingerprint="f", simulated=simulated),))
    unreal = profile(replace(task, fleet=absent, sites=LocalSites(Scripted({}))))
    assert len(real.subnets) == 4 and real.subnets == unreal.subnets
    count = PreparedData(vit.folders.data).size("train")
    first = batch_indices(count, BATCH, task.seed, 0)
    assert list(real.scored_rows) == list(unreal.scored_rows) == first.tolist(), "scores say which rows they are of"
    assert real.times_of("ann").profiling_s and unreal.times_of("ann").simulated
    for subnet, one in zip(real.subnets, scores(ask(vit)).heads, strict=True):
        assert (subnet.weight_magnitude, subnet.gradient_magnitude, subnet.fisher) == (
            one.weight_magnitude, one.gradient_magnitude, one.fisher,
        )  # fmt: skip
