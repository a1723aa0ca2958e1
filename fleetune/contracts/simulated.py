"""A device that exists only as numbers: enough to plan for hardware that is not there, never to train on it."""

from typing import Annotated

from pydantic import Field

from fleetune.contracts.record import distinct, not_negative, positive, record
from fleetune.errors import Refused

ANY = "any"


@record
class Speed:
    """Time of a simulated device for models of one type.

    One pass (forward or backward) over y samples of a unit takes
    `layers · layer_s + y · FLOPs / flops_per_s`: small batches do not fill a GPU, so time is not proportional to y.
    """

    model: str = ANY
    """A model_type such as `resnet`; `any` for all that have no speed of their own."""
    flops_per_s: float
    layer_s: float = 0.0
    """What starting a layer costs whatever the batch, in each pass."""
    inferred: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    """No measurement of this model on this device stands behind it; the file says what it was inferred from."""

    def __post_init__(self) -> None:
        positive(f"speed of {self.model}", flops_per_s=self.flops_per_s)
        not_negative(f"speed of {self.model}", layer_s=self.layer_s)


@record
class Simulated:
    """A simulated device: what training may use of its memory, and its speeds."""

    memory_bytes: int
    speeds: tuple[Speed, ...]

    def __post_init__(self) -> None:
        positive("simulated", memory_bytes=self.memory_bytes)
        if not self.speeds:
            raise Refused("simulated: speeds is empty; give at least one flops_per_s")
        distinct("simulated", "speed of model", (speed.model for speed in self.speeds))

    def speed(self, device: str, model: str) -> Speed:
        """The speed for a model_type; refused with the list of those that are known."""
        found = {speed.model: speed for speed in self.speeds}
        if model in found or ANY in found:
            return found.get(model) or found[ANY]
        raise Refused(
            f"device {device}: it is simulated and has speeds for {', '.join(found)}, none for {model!r}; "
            f"add one to simulated.speeds (model: {model}, or {ANY})"
        )
