"""A subnet: a head of a block and its part of the feed-forward layer, with the scores that gates are chosen by."""

from fleetune.contracts.record import distinct, finite, not_negative, positive, record
from fleetune.errors import Refused


@record
class SubnetPart:
    """The share of one unit that belongs to a subnet."""

    unit: str
    share: float
    """Share of the unit's work and bytes, in (0, 1]."""

    def __post_init__(self) -> None:
        positive(f"part of unit {self.unit}", share=self.share)
        if self.share > 1:
            raise Refused(f"part of unit {self.unit}: share {self.share} is above 1; give the part of the unit")


@record
class Subnet:
    """A head of a block and an equal part of its feed-forward layer: D2FT (§2) trains, runs or skips it as a whole."""

    name: str
    """`encoder.layer.3#2`: block and head."""
    parts: tuple[SubnetPart, ...]
    weight_magnitude: float
    """Sum of |w| of its weights, D2FT eq. (3)."""
    gradient_magnitude: float
    """Sum of |gradient| over the scored micro-batches."""
    fisher: tuple[float, ...]
    """[micro-batch] sum of squared gradients, D2FT eq. (2)."""

    def __post_init__(self) -> None:
        if not self.parts:
            raise Refused(f"subnet {self.name}: it needs a part of at least one unit")
        distinct(f"subnet {self.name}", "unit", (part.unit for part in self.parts))
        scores = {"weight_magnitude": self.weight_magnitude, "gradient_magnitude": self.gradient_magnitude}
        for name, value in (*scores.items(), *(("fisher", value) for value in self.fisher)):
            finite(f"subnet {self.name}", **{name: value})
            not_negative(f"subnet {self.name}", **{name: value})
