"""Prepares what does not depend on devices: data, the model as a graph of units, and initial weights.

`prepare` writes them; `step_comparison` compares one training step of the recorded graph with the model's own, so that
an unfaithful recording is refused before anything is trained by it.

May import: models, data, contracts.
"""
