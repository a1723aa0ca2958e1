"""The ways to train that are compared: changes of the demo's run file."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One way to train."""

    name: str
    sets: tuple[str, ...] = ()
    """Changes, as `--set` takes them."""


FULL = Case(name="full")
LORA = Case(name="LoRA", sets=("model=minilm-lora",))
BF16 = Case(name="bf16", sets=("model.mixed_precision=bf16",))
RECOMPUTE = Case(name="recompute", sets=("training.recompute=always",))
LORA_RECOMPUTE = Case(name="LoRA recompute", sets=(*LORA.sets, *RECOMPUTE.sets))
LORA_BF16 = Case(name="LoRA bf16", sets=(*LORA.sets, *BF16.sets))
NF4 = Case(name="LoRA NF4", sets=(*LORA.sets, "model.quantization=nf4"))
NF4_BF16 = Case(name="LoRA NF4 bf16", sets=(*NF4.sets, *BF16.sets))
PAIR = Case(name="full, a pair", sets=("strategy={name: pp, options: {groups: [[desk, laptop], [nano]]}}",))
"""Two devices sum their gradients, whatever is fastest."""
TRIO = Case(name="full, a trio", sets=("strategy=dp",))
"""All three do."""
LAST_THIRD = Case(name="LoRA, last third", sets=(*LORA.sets, r"model.lora.targets=.*layer\.[45]\..*(query|value)"))
CACHED = Case(name="LoRA, last third, cached", sets=(*LAST_THIRD.sets, "model.cache_activations=true"))


def ways() -> tuple[Case, ...]:
    """All of them."""
    return FULL, LORA, BF16, LORA_BF16, NF4, NF4_BF16, RECOMPUTE, LORA_RECOMPUTE, PAIR, TRIO, LAST_THIRD, CACHED
