"""What rounds took: rows as they travel from workers, and the few rounds' rows that are kept."""

import bisect
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import Buffer

from fleetune.contracts.metrics import TimelineRow
from fleetune.errors import Refused

KEPT_ROUNDS = 16


def rows_part(rows: Sequence[TimelineRow]) -> bytes:
    """Rows as a message part: of many micro-batches they would not fit into a header."""
    plain = [[r.device, r.action, r.start_s, r.end_s, r.bytes] for r in rows]
    return json.dumps(plain, separators=(",", ":"), allow_nan=False).encode()


def raw_rows(device: str, parts: Sequence[Buffer]) -> list[list[Any]]:
    """[device or link, action, start_s, end_s, bytes] of each row that a device sent; refused if they are none."""
    try:
        (part,) = parts
        rows = json.loads(bytes(part))
        for name, action, start_s, end_s, size_bytes in rows:
            times = math.isfinite(start_s) and math.isfinite(end_s)
            own = name == device or name.endswith(f">{device}")
            if not (times and own and "/" in action and type(size_bytes) is int and size_bytes >= 0):
                raise ValueError(f"{name!s:.40} {action!s:.40} from {start_s} to {end_s}")
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise Refused(f"device {device} reports a round in rows that cannot be read ({error})") from None
    return list(rows)


class Measurements:
    """Peaks of memory, and rows and bytes sent of the rounds that are nearest to the median; bounded."""

    def __init__(self) -> None:
        self.peaks: dict[str, int] = {}
        """device -> bytes."""
        self._ordered_s: list[float] = []
        self._kept: dict[int, tuple[float, list[TimelineRow], Mapping[tuple[str, str], int]]] = {}

    def add(
        self, round: int, round_s: float, rows: list[TimelineRow], sent_bytes: Mapping[tuple[str, str], int]
    ) -> None:
        """Take a round's rows; the one of the kept that is farthest from the median so far may be forgotten for it."""
        bisect.insort(self._ordered_s, round_s)
        self._kept[round] = (round_s, rows, sent_bytes)
        if len(self._kept) > KEPT_ROUNDS:
            median_s = self._ordered_s[len(self._ordered_s) // 2]
            del self._kept[max(self._kept, key=lambda r: (abs(self._kept[r][0] - median_s), r))]

    def typical(self, median_s: float) -> tuple[list[TimelineRow], Mapping[tuple[str, str], int]]:
        """Rows and bytes from device to device of the kept round that is nearest to the median; empty without one."""
        nearest = min(self._kept, key=lambda r: (abs(self._kept[r][0] - median_s), r), default=None)
        return self._kept[nearest][1:] if nearest is not None else ([], {})
