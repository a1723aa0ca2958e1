"""Requirements of a model on its inputs, which data preparation satisfies."""

from pathlib import Path

from fleetune.contracts.record import one_of, positive, record
from fleetune.contracts.tasks import TASKS, TEXT_TASKS
from fleetune.errors import Refused

IGNORE_INDEX = -100
"""Label of positions that the loss ignores, as in torch's cross entropy."""


@record
class InputSpec:
    """Requirements of a model on its inputs; fields that the task does not use stay None."""

    task: str
    tokenizer: Path | None = None
    """Folder of the model's own tokenizer; None: text is split into bytes."""
    pretrained: bool = False
    """The model has trained weights, which only understand the ids of its own tokenizer."""
    labels: tuple[str, ...] = ()
    """Class names by id of a model with a trained classification head; empty for a new head."""
    numbered: bool = False
    """Labels that are numbers are those of `labels`, also where they are fewer: training of the model goes on."""
    continued: bool = False
    """The model is that of an earlier run: data with other classes than `labels` are refused."""
    image_processor: Path | None = None
    """Folder with the model's preprocessor_config.json; None: image_size, image_mean and image_std apply."""
    vocab_size: int | None = None
    """Exclusive upper bound of token ids."""
    decoder_start_token_id: int | None = None
    """Id before the first token that a decoder writes; None: the model's configuration names none, or no task does."""
    max_positions: int | None = None
    """Maximum number of tokens of a sample."""
    image_size: int | None = None
    """Side in pixels; None: the size of the model's image processor, or of the images themselves."""
    patches: tuple[int, int] | None = None
    """Of a model for images of any shape: side of a patch in pixels, and number of patches at most; None: another."""
    channels: int = 3
    image_mean: tuple[float, ...] = (0.5,)
    """Subtracted from every channel (values 0..1) before dividing by image_std; one number, or one per channel."""
    image_std: tuple[float, ...] = (0.5,)
    precision: str = "float32"

    def __post_init__(self) -> None:
        one_of("input spec", "task", self.task, TASKS)
        one_of("input spec", "precision", self.precision, ("float32", "float64"))
        positive("input spec", channels=self.channels, **{"smallest image_std": min(self.image_std, default=0)})
        for name, values in (("image_mean", self.image_mean), ("image_std", self.image_std)):
            if len(values) not in (1, self.channels):
                raise Refused(f"input spec: {name} has {len(values)} numbers; allowed are 1 or {self.channels}")

    @property
    def is_text(self) -> bool:
        """True if samples are texts, False if they are images."""
        return self.task in TEXT_TASKS
