"""What a model asks of its inputs."""

from pathlib import Path

from fleetune.contracts.record import one_of, positive, record
from fleetune.contracts.run_config import TASKS
from fleetune.errors import Refused

TEXT_TASKS = ("sequence-classification", "causal-lm")


@record
class InputNeeds:
    """The shape of a model's inputs; what the task does not use stays None."""

    task: str
    tokenizer: Path | None = None
    """Folder of the model's own tokenizer; without one, text is split into bytes."""
    pretrained: bool = False
    """The model has weights of its own, so ids that its own tokenizer did not make mean nothing to it."""
    labels: tuple[str, ...] = ()
    """Names of the classes, by number, of a model that classifies already; empty where its head is new."""
    image_processor: Path | None = None
    """Folder with the preprocessor_config.json of the model; without one, image_size, mean and std below count."""
    vocab_size: int | None = None
    """Token ids must lie below this."""
    max_positions: int | None = None
    """Tokens that the longest sample may have."""
    image_size: int | None = None
    """Side in pixels; None leaves images at the size they have, or at that of the model's image processor."""
    channels: int = 3
    image_mean: tuple[float, ...] = (0.5,)
    """Taken from every channel (values 0..1) before dividing by image_std; one number, or one per channel."""
    image_std: tuple[float, ...] = (0.5,)
    precision: str = "float32"

    def __post_init__(self) -> None:
        one_of("input needs", "task", self.task, TASKS)
        one_of("input needs", "precision", self.precision, ("float32", "float64"))
        positive("input needs", channels=self.channels, **{"smallest image_std": min(self.image_std, default=0)})
        for name, values in (("image_mean", self.image_mean), ("image_std", self.image_std)):
            if len(values) not in (1, self.channels):
                raise Refused(f"input needs: {name} has {len(values)} numbers; allowed are 1 or {self.channels}")

    @property
    def is_text(self) -> bool:
        """True where a sample is a text, False where it is an image."""
        return self.task in TEXT_TASKS
