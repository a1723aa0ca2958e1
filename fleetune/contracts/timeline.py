"""A timeline: forecast and measurement in the same rows, so plan error is a subtraction and one function draws both."""

from fleetune.contracts.record import not_negative, record
from fleetune.errors import Refused


@record
class Row:
    """Something that took time. A device's name for work, `a>b` for bytes on the link from a to b."""

    device: str
    lane: str
    action: str
    start_s: float
    """From the start of its round."""
    end_s: float
    bytes: int = 0

    def __post_init__(self) -> None:
        not_negative(f"row {self.device} {self.action}", bytes=self.bytes)
        if not self.end_s >= self.start_s:
            raise Refused(f"row {self.device} {self.action}: ends at {self.end_s} before it starts at {self.start_s}")

    @property
    def is_transfer(self) -> bool:
        """True for bytes on a link."""
        return ">" in self.device


@record
class LinkBytes:
    """Bytes that one directed link carried."""

    source: str
    target: str
    bytes: int


@record
class DeviceAmount:
    """A quantity of one device; the unit is in the name of the field that holds it."""

    device: str
    amount: float


@record
class Forecast:
    """What the clock says about one round of a plan."""

    round_s: float
    rows: tuple[Row, ...]
    busy_s: tuple[DeviceAmount, ...]
    memory_bytes: tuple[DeviceAmount, ...]
    """Peak of each device, the runtime's own memory included."""
    link_bytes: tuple[LinkBytes, ...]
