"""Weights in half precision: what is held, what is computed with, and how gradients come back to float32."""

import gc
from pathlib import Path

import pytest
import torch

from fleetune.contracts.profile import Profile
from fleetune.contracts.run_config import Lora, ModelRequest
from fleetune.models.graph import Graph, graph_text, parse_graph
from fleetune.models.init_weights import write_init_weights
from fleetune.models.nf4 import PACKED
from fleetune.models.segment import SegmentRunner
from fleetune.models.skeleton import base_skeleton, skeleton
from fleetune.models.source import configuration
from fleetune.models.unit_graph import record_units
from fleetune.models.weights import WeightReader
from fleetune.profiling.profile import shared_bytes, tied_bytes, unit_sizes
from tests.support.models.instances import CPU, LABELS, Recorded, batch, recorded
from tests.support.training.model_families import BY_NAME

BERT = BY_NAME["bert"]
FROZEN = (r"bert\.embeddings",)


def computed(ready: Recorded, segment: SegmentRunner, samples: int = 3) -> torch.Tensor:
    """Return the output of all units in evaluation mode."""
    segment.train(False)
    inputs = batch(BERT, samples)
    values = {number: inputs[name] for name, number in ready.graph.inputs.items()}
    return segment.run(values, samples)[ready.graph.output]


def test_what_is_held_is_what_the_profile_counts(tmp_path: Path) -> None:
    """Frozen weights are held in bfloat16 alone, trained ones in float32 and a copy; memory counts these bytes."""
    ready = recorded(BERT, tmp_path, freeze=FROZEN, mixed_precision="bf16")
    module = skeleton(configuration(ready.request, LABELS), ready.request)
    nothing = [0] * len(ready.units)
    for unit in unit_sizes(ready.graph, module, nothing, nothing, 8):
        segment = ready.segment([unit.name])
        assert all((p.dtype == torch.float32) == p.requires_grad for p in segment.parameters.values())
        copies = [t for name, t in segment.read_weights().items() if t is not segment.parameters[name]]
        assert {t.dtype for t in (*segment.parameters.values(), *copies)} <= {torch.float32, torch.bfloat16}
        held = (*segment.parameters.values(), *segment.buffers.values(), *copies)
        assert unit.param_bytes + unit.buffer_bytes == sum(t.numel() * t.element_size() for t in held)


@pytest.mark.parametrize("mixed", [None, "bf16"])
@pytest.mark.parametrize("lora", [None, Lora(r=2, targets=("c_attn",))], ids=["all weights", "adapters"])
def test_a_weight_that_units_share_is_held_once_and_counted_so(
    lora: Lora | None, mixed: str | None, tmp_path: Path
) -> None:
    """GPT-2's embedding is its head: a device with all units has it, and its copy in half precision, but once, whether
    it is trained or frozen below adapters.
    """
    ready = recorded(BY_NAME["gpt2"], tmp_path, lora=lora, mixed_precision=mixed)
    module = skeleton(configuration(ready.request, ()), ready.request)
    nothing = [0] * len(ready.units)
    units = unit_sizes(ready.graph, module, nothing, nothing, 8)
    sizes = {"tied_bytes": tied_bytes(ready.graph, module), "shared_bytes": shared_bytes(ready.graph, module)}
    profile = Profile(model="gpt2", units=units, batch_sizes=(1,), times=(), **sizes)
    segment = ready.segment(list(ready.units))
    copies = [t for name, t in segment.read_weights().items() if t is not segment.parameters[name]]
    held = sum(t.numel() * t.element_size() for t in (*segment.parameters.values(), *segment.buffers.values(), *copies))
    assert profile.weight_bytes(ready.units) == held < sum(unit.param_bytes + unit.buffer_bytes for unit in units)
    ends = [unit.name for unit in units if unit.frozen_tied], [unit.name for unit in units if unit.tied]
    assert ends == (([units[0].name, units[-1].name], []) if lora else ([], [units[0].name, units[-1].name]))


def test_half_the_bytes_cross_a_cut_and_are_kept(tmp_path: Path) -> None:
    """Values and gradients at cuts of a Llama take half the bytes of float32, but for its positions and masks."""
    sizes = {}
    for mixed in (None, "bf16"):
        ready = recorded(BY_NAME["llama"], tmp_path / str(mixed), mixed_precision=mixed)
        module = skeleton(configuration(ready.request, ()), ready.request)
        nothing = [0] * len(ready.units)
        sizes[mixed] = unit_sizes(ready.graph, module, nothing, nothing, 8)
    for whole, half in zip(sizes[None][:-1], sizes["bf16"][:-1], strict=True):
        assert half.gradient_bytes == whole.gradient_bytes / 2
        assert half.output_bytes < 0.6 * whole.output_bytes


def test_a_changed_weight_is_computed_with(tmp_path: Path) -> None:
    """A segment that has run and is given other weights computes as one that has just loaded them."""
    ready = recorded(BERT, tmp_path, mixed_precision="bf16")
    used, new = ready.segment(ready.units), ready.segment(ready.units)
    before = computed(ready, used)
    changed = {name: p.detach() * 1.5 for name, p in used.parameters.items()}
    used.put(changed)
    new.put(changed)
    assert torch.equal(computed(ready, used), computed(ready, new))
    assert not torch.equal(computed(ready, used), before)


def test_modules_hold_their_float32_weights_between_runs(tmp_path: Path) -> None:
    """The copies stand in modules during a run alone: what else reads a module, as a checkpoint, sees the masters."""
    ready = recorded(BERT, tmp_path, mixed_precision="bf16")
    segment = ready.segment(ready.units)
    computed(ready, segment)
    read = [p for module in segment.modules.values() for p in module.parameters()]
    assert {id(p) for p in read} <= {id(p) for p in segment.parameters.values()}


def test_gradients_of_several_micro_batches_are_added_up_in_float32(tmp_path: Path) -> None:
    """Two backwards through one copy leave the float32 sum of both gradients, which bfloat16 cannot hold."""
    ready = recorded(BERT, tmp_path, mixed_precision="bf16")
    segment = ready.segment(ready.units)
    parts = []
    for samples in (3, 5):
        computed(ready, segment, samples).float().sum().backward()
        parts.append({n: p.grad.clone() for n, p in segment.parameters.items() if p.grad is not None})
    name = "bert.encoder.layer.0.output.dense.weight"
    assert parts[1][name].dtype == torch.float32
    alone = parts[1][name] - parts[0][name]
    assert not torch.equal(parts[1][name], parts[1][name].bfloat16().float())
    assert float(alone.norm()) > 0


def test_units_that_are_not_trained_for_now_keep_their_float32_weights(tmp_path: Path) -> None:
    """A device that trains one block at a time holds masters of all, so that nothing is rounded when blocks change."""
    ready = recorded(BERT, tmp_path, mixed_precision="bf16")
    whole = ready.segment(ready.units)
    config = configuration(ready.request, LABELS)
    segment = SegmentRunner(ready.graph, ready.units, skeleton(config, ready.request), CPU)
    segment.train_only((), ())
    segment.load(WeightReader(base_skeleton(config, ready.request), None, ready.start))
    assert all(torch.equal(p, whole.parameters[name]) for name, p in segment.parameters.items())
    assert not computed(ready, segment).requires_grad


def test_a_frozen_base_is_read_from_a_folder_in_portions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An adapter's base of a pretrained folder is rounded to bfloat16, portion by portion, and its source let go."""
    plain = recorded(BERT, tmp_path / "plain")
    whole = plain.whole()
    whole.save_pretrained(tmp_path / "bert")  # type: ignore[operator]
    lora = Lora(r=2, targets=("query",))
    request = ModelRequest(
        task="sequence-classification", source=str(tmp_path / "bert"), lora=lora, mixed_precision="bf16"
    )
    config = configuration(request, LABELS)
    write_init_weights(config, request, 3, tmp_path / "start.safetensors")
    ready = Recorded(request, _recorded(request), tmp_path / "start.safetensors", LABELS)
    monkeypatch.setattr("fleetune.models.weight_portions.PORTION_ELEMENTS", 1000)
    segment = SegmentRunner(ready.graph, ready.units, skeleton(config, request), CPU)
    base = base_skeleton(config, request)
    segment.load(WeightReader(base, tmp_path / "bert", ready.start))
    held = segment.parameters["base_model.model.bert.encoder.layer.1.output.dense.weight"]
    source = dict(whole.named_parameters())["bert.encoder.layer.1.output.dense.weight"]
    assert held.dtype == torch.bfloat16 and torch.equal(held, source.bfloat16())
    assert all(p.is_meta for p in base.parameters())


def test_what_stays_as_it_was_read_does_not_keep_the_file_of_what_was_packed(tmp_path: Path) -> None:
    """Biases and norms beside packed weights are copied; else every page that was read for those stays in memory."""
    recorded(BERT, tmp_path / "plain").whole().save_pretrained(tmp_path / "bert")  # type: ignore[operator]
    lora = Lora(r=2, targets=("query",))
    request = ModelRequest(task="sequence-classification", source=str(tmp_path / "bert"), lora=lora, quantization="nf4")
    config = configuration(request, LABELS)
    write_init_weights(config, request, 3, tmp_path / "start.safetensors")
    ready = Recorded(request, _recorded(request), tmp_path / "start.safetensors", LABELS)
    segment = SegmentRunner(ready.graph, ready.units, skeleton(config, request), CPU)
    segment.load(WeightReader(base_skeleton(config, request), tmp_path / "bert", ready.start))
    gc.collect()
    assert any(held.dtype == PACKED for held in segment.parameters.values())
    assert str(tmp_path / "bert") not in Path("/proc/self/maps").read_text(encoding="utf-8")


def _recorded(request: ModelRequest) -> Graph:
    module = skeleton(configuration(request, LABELS), request)
    made = record_units(module, batch(BERT, 4), "block", compute=request.compute)
    return parse_graph(graph_text(made), "graph.json")
