"""Search for planted numbers and texts in bytes, however they are written."""

import json
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import torch

LEAST_DIFFERENT = 3
"""Numbers of which fewer are different, such as fractions as whole numbers, would be found anywhere."""
DTYPES = ("int64", "int32", "int16", "int8", "uint8", "float64", "float32", "float16", "bfloat16")


def spellings(numbers: np.ndarray) -> Iterator[tuple[str, bytes]]:
    """Yield (name, bytes) of numbers in every dtype, little and big endian, and as JSON; fractions as 0..255 too."""
    given = torch.from_numpy(np.ascontiguousarray(numbers))
    images = [(given + 1) * 127.5] if given.is_floating_point() else []
    for name, made in ((n, each.to(getattr(torch, n))) for n in DTYPES for each in (given, *images)):
        if len(made.unique()) < LEAST_DIFFERENT:
            continue
        size = made.element_size()
        plain = made.view(torch.uint8).numpy().reshape(-1, size)
        yield name, plain.tobytes()
        yield f"{name} big endian", plain[:, ::-1].tobytes()
    for separator in (", ", ","):
        yield "JSON", json.dumps(numbers.tolist(), separators=(separator, ": "))[1:-1].encode()


def text_spellings(text: str) -> Iterator[tuple[str, bytes]]:
    """Yield (name, bytes) of a text in usual encodings."""
    for encoding in ("utf-8", "utf-16-le", "utf-32-le"):
        yield encoding, text.encode(encoding)


def found_in(content: bytes, planted: Mapping[str, Iterable[tuple[str, bytes]]]) -> list[str]:
    """Return `WHAT as SPELLING` of everything planted that is in the content."""
    return [f"{what} as {name}" for what, ways in planted.items() for name, pattern in ways if pattern in content]
