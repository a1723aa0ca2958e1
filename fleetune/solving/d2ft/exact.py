"""Decimals as a user wrote them, as whole numbers: 3 x 0.1 fits into 0.3, though no binary fraction is 0.1."""

from collections.abc import Iterable
from decimal import Decimal


def scaled(values: Iterable[float]) -> list[int]:
    """Every number, finite, times the smallest power of ten that makes whole numbers of their shortest decimals."""
    decimals = [Decimal(repr(float(value))).as_tuple() for value in values]
    lowest = min((int(exponent) for _, _, exponent in decimals), default=0)
    return [
        (-1) ** sign * int("".join(map(str, digits))) * 10 ** (int(exponent) - lowest)
        for sign, digits, exponent in decimals
    ]
