"""Trackers: TensorBoard files, Weights & Biases and MLflow, told what a run measures while it trains.

They work beside the run, from its record, the commit log of `train` and the artifacts: no stage knows of them, none is
delayed by them, and whatever goes wrong here is a remark in the run's log, never its end.
"""
