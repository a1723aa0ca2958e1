"""How the parameters move."""

from fleetune.contracts.record import not_negative, one_of, positive, record
from fleetune.errors import Refused


@record
class TrainingRequest:
    """The `training` section of a run. A round is one optimizer step over batch_samples samples."""

    rounds: int
    batch_samples: int = 32
    micro_batch_samples: int = 8
    optimizer: str = "adamw"
    learning_rate: float = 5e-4
    weight_decay: float = 0.0
    momentum: float = 0.0
    """Of sgd."""
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    schedule: str = "constant"
    """After the warm-up: constant, linear (to 0 at the last round) or cosine."""
    warmup_rounds: int = 0
    clip_norm: float | None = None
    """Global L2 norm that gradients are scaled down to."""
    checkpoint_every_rounds: int | None = None
    """None: every 50 rounds or a quarter of all, whichever is less, and once a minute."""

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
        one_of("training", "schedule", self.schedule, ("constant", "linear", "cosine"))
        for name in ("clip_norm", "checkpoint_every_rounds"):
            if getattr(self, name) is not None:
                positive("training", **{name: getattr(self, name)})
        if self.batch_samples % self.micro_batch_samples:
            raise Refused(
                f"training: micro_batch_samples {self.micro_batch_samples} does not divide batch_samples "
                f"{self.batch_samples}; choose a divisor"
            )

    @property
    def micro_batches(self) -> int:
        """M of the papers."""
        return self.batch_samples // self.micro_batch_samples

    @property
    def optimizer_bytes_per_param_byte(self) -> float:
        """State that the optimizer keeps beside every trainable byte."""
        return 2.0 if self.optimizer == "adamw" else (1.0 if self.momentum else 0.0)
