"""Numbers in problem files: a number is a number, never text or true; a whole one may be written 4, 4.0 or 4e0.

For fields of records that people and foreign programs write by hand; pydantic alone would read "4" and true as well.
"""

from typing import Annotated, Any

from pydantic import BeforeValidator, Strict
from pydantic_core import PydanticCustomError

LARGEST = 2**62
"""Whole numbers stay where 64 bits hold them."""


def _whole(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1:
        if abs(value) <= LARGEST:
            return int(value)
        raise PydanticCustomError("large", f"must be a whole number of at most {LARGEST}")
    raise PydanticCustomError("whole", "must be a whole number")


Whole = Annotated[int, BeforeValidator(_whole)]
Real = Annotated[float, Strict()]
