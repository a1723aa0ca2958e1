"""Trains a model by a plan: one worker process per device, one coordinator, encrypted links between them.

A round is a transaction. Workers compute gradients (`rounds`), exchange what crosses cuts (`exchange`), add up inside
their group (`reduction`) and report; parameters move (`updates`) only when the coordinator has the commit on disk
(`commits`) and says so. `checkpoints` keep what a run needs to go on under any other plan.

torch.distributed was set aside: gloo can neither encrypt nor authenticate, and a lost peer ends the process group.
"""

from fleetune.training.coordinator import train
from fleetune.training.task import TrainingTask

__all__ = ["TrainingTask", "train"]
