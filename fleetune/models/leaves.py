"""Which modules run as one piece while a model is recorded.

`block`: a transformer layer, residual block or inverted residual (what the model repeats), and whatever lies outside
the repeated part as it is named (embeddings, pooler, head). `layer`: modules without children, adapters with their
base.
"""

from torch import nn

# Where the outermost repeated part is a whole stage of a network, the block is what that stage repeats.
BLOCKS = {"resnet": ("ResNetBasicLayer", "ResNetBottleNeckLayer")}


def leaves(model: nn.Module, granularity: str) -> set[str]:
    """Names of the modules that are recorded as one call."""
    if granularity == "layer":
        return {name for name, module in model.named_modules() if name and _is_small(module)}
    blocks = _blocks(model)
    above = {name.rsplit(".", cut)[0] for name in blocks for cut in range(1, name.count(".") + 1)}
    found = set(blocks)
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{leaf}.") for leaf in found)
        if name and not inside and name not in above and not isinstance(module, nn.ModuleList | nn.ModuleDict):
            found.add(name)
    return found


def _is_small(module: nn.Module) -> bool:
    """No children, or an adapter around one layer."""
    return not any(True for _ in module.children()) or hasattr(module, "lora_A")


def _blocks(model: nn.Module) -> list[str]:
    config = getattr(model, "config", None)
    classes = BLOCKS.get(getattr(config, "model_type", ""), ())
    if classes:
        return [name for name, module in model.named_modules() if type(module).__name__ in classes]
    found: list[str] = []
    for name, module in model.named_modules():
        repeated = isinstance(module, nn.ModuleList) and len(module) > 0
        if repeated and not any(name == leaf or name.startswith(f"{leaf}.") for leaf in found):
            found += [f"{name}.{child}" for child, _ in module.named_children()]
    return found
