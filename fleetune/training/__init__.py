"""Trains a model by a plan: one worker process per device, one coordinator, encrypted links between them.

A round is a transaction. Each `worker` runs the steps of its program on its `seat`s (`rounds`), sends the values
that cross cuts (`exchange`), sums gradients over its group (`gradients`) and reports. Parameters take their step
(`optimizer`) only after the `coordinator` has the commit on disk and its `worker_group` has sent it. `liveness`
finds devices and links at fault; `checkpoints` hold the state, and `recovery` resumes from it under any plan. This file
imports nothing: what it imported would take memory in every worker.

torch.distributed was rejected: gloo can neither encrypt nor authenticate, and a lost peer ends the process group.
"""
