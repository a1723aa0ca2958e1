"""Prepares what does not depend on devices: data, the model as a graph of units, and initial weights.

`prepare.prepare` writes them and compares one training step of the recorded graph with the model's own, so that an
unfaithful recording is refused before anything is measured or trained by it. `local_data` is also a part of training,
so this package imports nothing by itself.
"""
