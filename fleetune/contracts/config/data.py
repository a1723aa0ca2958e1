"""Which data are trained on and evaluated with."""

from fleetune.contracts.record import not_negative, positive, record
from fleetune.errors import Refused

BUILT_IN = ("digits", "docstrings", "stdlib-sources")


@record
class DataRequest:
    """The `data` section of a run.

    `source` is one of the built-in sets (digits, docstrings, stdlib-sources), a .jsonl, .csv or .parquet file (or a
    folder with train.* and test.* files), a folder with a folder of images per class (below train/ and test/ where
    there are splits), or a Hugging Face dataset by folder or hub name.
    """

    source: str
    text_column: str = "text"
    image_column: str = "image"
    label_column: str = "label"
    max_length: int = 64
    """Tokens per sample; longer texts are cut, shorter ones padded."""
    image_size: int | None = None
    """Side in pixels that images are resized to; by default the model's own."""
    train_samples: int | None = None
    """At most this many (the first of a seeded shuffle); all when absent."""
    test_samples: int | None = None
    """So many, likewise; fewer are refused."""
    test_fraction: float = 0.2
    """Held out where the source has no test split of its own."""

    def __post_init__(self) -> None:
        if not self.source:
            raise Refused(f"data: source is empty; allowed are {', '.join(BUILT_IN)}, a file, a folder or a hub name")
        positive("data", max_length=self.max_length)
        for name, value in (
            ("train_samples", self.train_samples),
            ("test_samples", self.test_samples),
            ("image_size", self.image_size),
        ):
            if value is not None:
                positive("data", **{name: value})
        not_negative("data", test_fraction=self.test_fraction)
        if not 0 < self.test_fraction < 1:
            raise Refused(f"data: test_fraction must lie between 0 and 1 (got {self.test_fraction})")
