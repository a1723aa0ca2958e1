"""The `training` section of a run: rounds, optimizer, learning rate, checkpoints, and scores while it trains."""

from typing import Annotated

from pydantic import Field

from fleetune.contracts.record import not_negative, one_of, positive, record
from fleetune.errors import Refused

AUTO, NEVER, ALWAYS = "auto", "never", "always"
"""Values of `recompute`."""
WEIGHTS, ALL = "weights", "all"
"""Values of `weight_decay_on`."""
OPTIMIZER_SETTINGS = {"momentum": "sgd", "beta1": "adamw", "beta2": "adamw", "epsilon": "adamw"}
"""Setting -> the optimizer that reads it."""


@record
class TrainingRequest:
    """The `training` section of a run. A round is one optimizer step over batch_samples samples."""

    rounds: int
    batch_samples: int = 32
    micro_batch_samples: int = 8
    optimizer: str = "adamw"
    learning_rate: float = 5e-4
    weight_decay: float = 0.0
    weight_decay_on: Annotated[str, Field(exclude_if=lambda value: not value)] = WEIGHTS
    """What decays: `weights` (no biases and norms, as in transformers' Trainer) or `all`. Empty without a decay."""
    momentum: float = 0.0
    """Of sgd."""
    beta1: float = 0.9
    """Of adamw, as beta2 and epsilon are."""
    beta2: float = 0.999
    epsilon: float = 1e-8
    schedule: str = "constant"
    """Learning rate after the warm-up: constant, linear (to 0 at the last round) or cosine."""
    warmup_rounds: int = 0
    clip_norm: float | None = None
    """Maximum global L2 norm of the gradients; None disables clipping."""
    checkpoint_every_rounds: int | None = None
    """None: every 50 rounds or a quarter of all rounds, whichever is less, and once a minute. A number replaces all."""
    replan_stragglers: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    """True: a device that has become much slower than its profile is given less work. It is reported in any case."""
    recompute: Annotated[str, Field(exclude_if=lambda value: value == AUTO)] = AUTO
    """Whether devices keep no activations inside blocks and compute them again in the backward: auto (in the segments
    of the plan for which memory would be short), always or never."""
    evaluate_every_rounds: Annotated[int | None, Field(exclude_if=lambda value: value is None)] = None
    """Rounds after which the held-out samples are scored beside the training, and at its end; None: only at its end."""
    early_stopping_patience: Annotated[int | None, Field(exclude_if=lambda value: value is None)] = None
    """The training ends once so many scores in a row have not lowered the held-out loss; None: it never does."""
    keep_best: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    """True: the result is the state with the lowest held-out loss, not the last one."""

    def __post_init__(self) -> None:
        positive(
            "training",
            rounds=self.rounds,
            batch_samples=self.batch_samples,
            micro_batch_samples=self.micro_batch_samples,
            learning_rate=self.learning_rate,
            epsilon=self.epsilon,
        )
        not_negative(
            "training",
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            warmup_rounds=self.warmup_rounds,
        )
        for name, beta in (("beta1", self.beta1), ("beta2", self.beta2)):
            not_negative("training", **{name: beta})
            if beta >= 1:
                raise Refused(f"training: {name} must be below 1 (got {beta})")
        one_of("training", "optimizer", self.optimizer, ("adamw", "sgd"))
        one_of("training", "weight_decay_on", self.weight_decay_on or WEIGHTS, (WEIGHTS, ALL))
        decayed = (self.weight_decay_on or WEIGHTS) if self.weight_decay else ""
        object.__setattr__(self, "weight_decay_on", decayed)
        one_of("training", "schedule", self.schedule, ("constant", "linear", "cosine"))
        one_of("training", "recompute", self.recompute, (AUTO, ALWAYS, NEVER))
        for name in ("clip_norm", "checkpoint_every_rounds"):
            if getattr(self, name) is not None:
                positive("training", **{name: getattr(self, name)})
        if self.batch_samples % self.micro_batch_samples:
            raise Refused(
                f"training: micro_batch_samples {self.micro_batch_samples} does not divide batch_samples "
                f"{self.batch_samples}; choose a divisor"
            )

        self._check_evaluations()

    def _check_evaluations(self) -> None:
        for name in ("evaluate_every_rounds", "early_stopping_patience"):
            if getattr(self, name) is not None:
                positive("training", **{name: getattr(self, name)})
        if self.evaluate_every_rounds is None and (self.keep_best or self.early_stopping_patience is not None):
            name = "keep_best" if self.keep_best else "early_stopping_patience"
            raise Refused(f"training: {name} needs scores while it trains; set training.evaluate_every_rounds, too")

    def check_scored_rounds(self, average_every_rounds: int, strategy: str) -> None:
        """Refused: between two averages (0: there are none) no state is that of all lanes, so none can be scored."""
        every = self.evaluate_every_rounds
        if every and average_every_rounds and every % average_every_rounds:
            raise Refused(
                f"training: evaluate_every_rounds {every} is no multiple of the {average_every_rounds} rounds between "
                f"two averages of strategy {strategy}; only averages can be scored"
            )

    def check_optimizer(self) -> None:
        """Refused: a setting of the other optimizer, which would do nothing. Records of older runs may have such."""
        for name, owner in OPTIMIZER_SETTINGS.items():
            value = getattr(self, name)
            if owner != self.optimizer and value != type(self).__dataclass_fields__[name].default:
                raise Refused(
                    f"training: {name} is {value:g}, but it is a setting of {owner}, and optimizer is "
                    f"{self.optimizer}, which would ignore it; leave it out, or set training.optimizer to {owner}"
                )

    @property
    def micro_batches(self) -> int:
        """Micro-batches of one round (M in the papers)."""
        return self.batch_samples // self.micro_batch_samples

    @property
    def optimizer_bytes_per_param_byte(self) -> float:
        """Bytes of optimizer state per trainable byte."""
        return 2.0 if self.optimizer == "adamw" else (1.0 if self.momentum else 0.0)
