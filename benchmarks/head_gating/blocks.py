"""Transformer blocks with random weights, with and without gates, on random inputs."""

import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from fleetune.contracts.plan import FORWARD_ONLY, FULL, SKIP
from fleetune.contracts.run_config import Lora, ModelRequest
from fleetune.models.attention_heads import attention_heads, find_blocks
from fleetune.models.gates import gate_segment
from fleetune.models.graph import Graph
from fleetune.models.init_weights import write_init_weights
from fleetune.models.randomness import RandomContext
from fleetune.models.recorder import record_model
from fleetune.models.segment import SegmentRunner
from fleetune.models.skeleton import base_skeleton, skeleton
from fleetune.models.source import configuration
from fleetune.models.units import fold_into_units, leaf_modules, merge_uncuttable
from fleetune.models.weights import WeightReader

CPU = torch.device("cpu")
MIXES = {"3_full_of_5": FULL * 3 + SKIP * 2, "3_full_1_forward_of_5": FULL * 3 + FORWARD_ONLY + SKIP}
"""Operations of each head in the five micro-batches of a round, in an order of its own; the first is the paper's."""
MICRO_BATCHES = 5


@dataclass(frozen=True)
class Workload:
    """Blocks of a model, and the micro-batches that they run on."""

    name: str
    request: ModelRequest
    samples: int
    inputs: dict[str, tuple[int, ...]]
    """Shape of each input of the model for one sample."""


def vit_small(samples: int, lora: bool) -> Workload:
    """Return blocks as wide as those of ViT-small, on images of 197 patches."""
    config = {
        "model_type": "vit", "hidden_size": 384, "num_hidden_layers": 2, "num_attention_heads": 6,
        "intermediate_size": 1536,
    }  # fmt: skip
    adapter = Lora(r=8, alpha=16, targets=("q_proj", "k_proj", "v_proj")) if lora else None
    request = ModelRequest(task="image-classification", config=config, lora=adapter)
    return Workload("vit_small", request, samples, {"pixel_values": (3, 224, 224)})


def gpt2_small(samples: int, lora: bool) -> Workload:
    """Return blocks as wide as those of GPT-2 small, on 512 tokens."""
    config = {"model_type": "gpt2", "n_layer": 2, "n_positions": 512, "vocab_size": 512}
    config |= {"bos_token_id": None, "eos_token_id": None}
    adapter = Lora(r=8, alpha=16, targets=("c_attn",)) if lora else None
    request = ModelRequest(task="causal-lm", config=config, lora=adapter)
    return Workload("gpt2_small", request, samples, {"input_ids": (512,), "attention_mask": (512,)})


class Blocks:
    """The blocks of a model, without what surrounds them."""

    def __init__(self, workload: Workload, folder: Path) -> None:
        self._workload, self._folder = workload, folder
        self._config = configuration(workload.request, ("a", "b"))
        module = self._skeleton()
        given: dict[str, torch.Tensor] = {
            name: torch.zeros(4, *shape, dtype=torch.float32 if name == "pixel_values" else torch.long)
            for name, shape in workload.inputs.items()
        }
        recorded = fold_into_units(record_model(module, given, leaf_modules(module, "block")))
        self._graph: Graph = merge_uncuttable(recorded)
        self._blocks = find_blocks(self._graph, self._skeleton(), self._config)
        write_init_weights(self._config, workload.request, 0, self._weights)
        self._values: dict[int, torch.Tensor] = {}

    def gates(self, mix: str, seed: int) -> dict[str, str]:
        """Return gates that are drawn for each head by itself, so that its micro-batches have different heads.

        mix: operations of a head, one for each micro-batch, in any order.
        """
        drawn = random.Random(seed)
        heads = attention_heads(self._blocks)
        return {head.name: "".join(drawn.sample(mix, len(mix))) for head in heads}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the blocks in model order."""
        return tuple(block.name for block in self._blocks)

    def segment(self, gates: dict[str, str], trained: str | None = None) -> SegmentRunner:
        """Return the blocks as a segment. trained: the only block that is trained; None: all."""
        made = SegmentRunner(self._graph, self.names, self._skeleton(), CPU)
        if trained is not None:
            own = [name for name, each in made.parameters.items() if each.requires_grad and _within(name, trained)]
            made.train_only([trained], own)
        if gates:
            gate_segment(made, gates, self._skeleton(), self._config)
        made.load(WeightReader(base_skeleton(self._config, self._workload.request), None, self._weights))
        made.train()
        return made

    def round_s(self, segment: SegmentRunner) -> float:
        """Run the forwards and backwards of one round; return the seconds of CPU time of this thread."""
        start_s = time.thread_time()
        for micro_batch in range(MICRO_BATCHES):
            outputs = self.forward(segment, micro_batch)
            torch.autograd.backward(outputs, [torch.ones_like(each) for each in outputs])
        return time.thread_time() - start_s

    def flops(self, segment: SegmentRunner) -> int:
        """Return the floating-point operations of one round's matrix products and attention."""
        with FlopCounterMode(display=False) as counter:
            self.round_s(segment)
        return int(counter.get_total_flops())

    def forward(self, segment: SegmentRunner, micro_batch: int = 0) -> list[torch.Tensor]:
        """Run the forward of a micro-batch; return the outputs that have a gradient."""
        samples = self._workload.samples
        given: dict[int, torch.Tensor] = {}
        for number in segment.input_values:
            value = self._values.setdefault(number, self._drawn(number))
            carries = self._graph.value(number).gradient
            carries = carries and segment.differentiates_inputs
            given[number] = value.detach().requires_grad_() if carries else value
        made = segment.run(given, samples, RandomContext(0, 0, micro_batch, 0, samples))
        return [value for value in made.values() if value.requires_grad]

    def _drawn(self, number: int) -> torch.Tensor:
        value = self._graph.value(number)
        shape = [self._workload.samples if size == self._graph.batch else int(size) for size in value.shape]
        if value.dtype == "bool":  # the mask of a causal model
            return torch.ones(shape, dtype=torch.bool).tril()
        return torch.randn(shape) if value.dtype == "float32" else torch.zeros(shape, dtype=torch.long)

    def _skeleton(self) -> Any:
        return skeleton(self._config, self._workload.request)

    @property
    def _weights(self) -> Path:
        return self._folder / f"{self._workload.name}.safetensors"


def _within(parameter: str, block: str) -> bool:
    return f".{block}." in f".{parameter}"
