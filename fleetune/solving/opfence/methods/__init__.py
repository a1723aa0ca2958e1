"""The planners: `search` starts from the plans of the others; `opfence` considers the baselines'."""

SUMMARIES = {
    "search": "ours: chooses devices, their order and the cuts together, then moves devices and operators",
    "opfence": "the paper's OP-Fence: a connected part of the graph for each cluster of fast links, balanced inside",
    "equal-modules": "equally many operators on every device, in listed order; ignores memory and links",
    "equal-compute": "equally many flops on every device, in listed order; ignores memory and links",
}
"""Method -> summary; the first is the default."""
