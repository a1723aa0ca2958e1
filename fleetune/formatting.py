"""Numbers with units, as messages, tables and charts show them."""

import re
from collections.abc import Iterable, Sequence

SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Characters that steer a terminal, but for tabs and line ends."""


def visible(text: str) -> str:
    """Spell out control characters: an escape becomes the four characters `\\x1b`."""
    return CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def shortlist(names: Iterable[object], most: int = 5) -> str:
    """Join the first names, and the number of further ones, for a message."""
    every = [str(name) for name in names]
    return ", ".join(every[:most]) + (f" and {len(every) - most} more" if len(every) > most else "")


def seconds(value: float) -> str:
    """Format seconds: `1.23 ms`, or `2 min 5 s` from 120 s on."""
    if value >= 120:
        minutes, rest = divmod(round(value), 60)
        return f"{minutes} min {rest} s"
    return _scaled(value, SECONDS)


def seconds_range(low: float, high: float) -> str:
    """Format a range of seconds: `1.23 ms to 1.40 ms`."""
    return f"{seconds(low)} to {seconds(high)}"


def size(value: float) -> str:
    """Format bytes in powers of ten, with three significant digits: `4.56 MB`."""
    return _scaled(value, BYTES)


def gigabytes(value: float, decimals: int = 2) -> str:
    """Format bytes in gigabytes, so that the amounts of a sentence compare: `0.05 GB`."""
    return f"{value / 1e9:.{decimals}f} GB"


def megabytes(value: float, decimals: int = 0) -> str:
    """Format bytes in megabytes, so that the amounts of a sentence compare: `612 MB`."""
    return f"{value / 1e6:.{decimals}f} MB"


def aligned_size(value: float) -> str:
    """Format bytes for a column of amounts of any magnitude, with two decimals from a kilobyte on: `123.40 MB`."""
    for factor, name in BYTES[1:-1]:
        if value >= factor:
            return f"{value / factor:.2f} {name}"
    return f"{value:.0f} B"


def whole_size(value: float) -> str:
    """Format bytes in full: `1 byte`, `5000000000 bytes`; a fraction of a byte only where it has one."""
    if value == 1:
        return "1 byte"
    return f"{int(value) if value == value // 1 and value < 1e18 else value} bytes"


def exact_size(value: float) -> str:
    """Format bytes for an error: in whole bytes, with a rounded unit before them from a million on."""
    exact = whole_size(int(value))
    return exact if value < 1e6 else f"{size(value)} ({exact})"


def rate(value: float) -> str:
    """Format bytes per second: `12.5 MB/s`."""
    return size(value) + "/s"


def number(value: float) -> str:
    """Format a number with at most four significant digits; whole numbers in full."""
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else f"{value:.4g}"


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def percent(value: float) -> str:
    """Format a share as a signed percentage: `+12.3 %`."""
    return f"{value * 100:+.1f} %"


def _scaled(value: float, scale: tuple[tuple[float, str], ...]) -> str:
    if value == 0:
        return f"0 {'s' if scale is SECONDS else 'B'}"
    for factor, name in scale:
        if abs(value) >= factor * 0.9995:
            return f"{value / factor:.3g} {name}" if abs(value) < 999.5 * factor else f"{value / factor:.0f} {name}"
    factor, name = scale[-1]
    return f"{value / factor:.3g} {name}"
