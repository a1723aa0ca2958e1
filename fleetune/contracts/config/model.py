"""Which model is trained, and which of its parameters."""

import re
from typing import Annotated, Any

from pydantic import Field

from fleetune.contracts.record import not_negative, one_of, positive, record
from fleetune.errors import Refused

TASKS = ("sequence-classification", "image-classification", "causal-lm")


@record
class Lora:
    """Low-rank adapters (PEFT); everything else but the task's head is frozen."""

    r: int = 8
    alpha: float = 16.0
    dropout: float = 0.0
    targets: tuple[str, ...] | str
    """Names of the modules that get an adapter, or one regular expression."""
    start: str | None = None
    """Folder of a PEFT adapter to go on from."""

    def __post_init__(self) -> None:
        positive("lora", r=self.r, alpha=self.alpha)
        not_negative("lora", dropout=self.dropout)
        if self.dropout >= 1:
            raise Refused(f"lora: dropout must be below 1 (got {self.dropout})")


@record
class ModelRequest:
    """The `model` section of a run.

    `source` is a folder, a name on the Hugging Face hub, `package:NAME` (a Python package that carries a model), or
    nothing: then `config` with its `model_type` describes a model with random weights.
    """

    task: str
    source: str | None = None
    config: dict[str, Any] | None = None
    """Changes to the model's own configuration; with no `source` the whole of it."""
    lora: Lora | None = None
    freeze: tuple[str, ...] = ()
    """Regular expressions; parameters whose name matches one from its start are not trained."""
    granularity: str = "block"
    """How fine the units are: `block` (a transformer or residual block) or `layer`."""
    precision: str = "float32"
    revision: Annotated[str | None, Field(exclude_if=lambda value: value is None)] = None
    """Branch, tag or commit of a name on the hub; by default its main branch. A run notes the commit it came to."""

    def __post_init__(self) -> None:
        one_of("model", "task", self.task, TASKS)
        one_of("model", "granularity", self.granularity, ("block", "layer"))
        one_of("model", "precision", self.precision, ("float32", "float64"))
        for pattern in self.freeze:
            try:
                re.compile(pattern)
            except re.error as error:
                raise Refused(f"model: freeze has {pattern!r}, which is no regular expression ({error})") from None
        if self.revision is not None and self.source is None:
            raise Refused(f"model: revision {self.revision!r} is of no source; give a name on the hub, or leave it out")
        if self.source is None and not (self.config or {}).get("model_type"):
            raise Refused("model: give source (a folder, a hub name, package:NAME) or config with a model_type")
