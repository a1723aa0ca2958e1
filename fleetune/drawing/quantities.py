"""Numbers with units, short enough for a table."""

import math

SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


def seconds(value: float) -> str:
    """`1.23 ms`"""
    if value >= 120:
        minutes, rest = divmod(round(value), 60)
        return f"{minutes} min {rest} s"
    return _scaled(value, SECONDS)


def size(value: float) -> str:
    """`4.56 MB`, in powers of ten."""
    return _scaled(value, BYTES)


def rate(value: float) -> str:
    """`12.5 MB/s`"""
    return size(value) + "/s"


def number(value: float) -> str:
    """Four significant digits at most; whole numbers as they are."""
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else f"{value:.4g}"


def percent(value: float) -> str:
    """`+12.3 %`, signed."""
    return f"{value * 100:+.1f} %"


def steps(until: float, most: int = 8) -> list[float]:
    """Round values from 0 up to `until`, at most `most` after 0: 1, 2 or 5 times a power of ten apart."""
    if until <= 0:
        return [0.0]
    exponent = math.floor(math.log10(until / most))
    steps_of_ten = (factor * 10.0**power for power in (exponent, exponent + 1) for factor in (1, 2, 5))
    step = next(step for step in steps_of_ten if until / step <= most)
    return [k * step for k in range(int(until / step + 1e-9) + 1)]


def _scaled(value: float, scale: tuple[tuple[float, str], ...]) -> str:
    if value == 0:
        return f"0 {'s' if scale is SECONDS else 'B'}"
    for factor, name in scale:
        if abs(value) >= factor * 0.9995:
            return f"{value / factor:.3g} {name}" if abs(value) < 999.5 * factor else f"{value / factor:.0f} {name}"
    factor, name = scale[-1]
    return f"{value / factor:.3g} {name}"
