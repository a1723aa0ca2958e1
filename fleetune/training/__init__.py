"""Trains a model by a plan: one worker process per device, one coordinator, encrypted links between them.

A round is a transaction. Each `worker` runs the steps of its program on its `seat`s (`rounds`), sends the values
that cross cuts (`exchange`), sums gradients over its group (`gradients`) and reports. Parameters take their step
(`optimizer`) only after the `training_loop` has the commit on disk and its `worker_group` has sent it. `liveness`
finds devices and links at fault; the conductor of `fleetune.recovery` decides how the others go on, by `migration` to a
plan of `revisions`, from `copies` in memory or `checkpoints`. This file imports nothing: what it imported would take
memory in every worker.

torch.distributed was rejected: gloo can neither encrypt nor authenticate, and a lost peer ends the process group.
"""
