"""Search for planted numbers and texts in bytes, however they are written."""

import json
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import torch

LEAST_DIFFERENT = 3
"""Numbers of which fewer are different, such as fractions as whole numbers, would be found anywhere."""
DTYPES = ("int64", "int32", "int16", "int8", "uint8", "float64", "float32", "float16", "bfloat16")
SECRET = "Zq#7Kv!wXj@3pRu9"
"""A text that is nowhere by chance."""


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


WORD = np.dtype("<u8")


def found_in(content: bytes, planted: Mapping[str, Iterable[tuple[str, bytes]]]) -> list[str]:
    """Return `WHAT as SPELLING` of everything planted that is in the content.

    Thousands of patterns are sought in megabytes: only those whose first eight bytes are there are sought one by one.
    """
    every = [(f"{what} as {name}", pattern) for what, ways in planted.items() for name, pattern in ways]
    starts = np.array([_start(pattern) for _, pattern in every], WORD)
    there = np.zeros(len(every), bool)
    for offset in range(min(WORD.itemsize, len(content))):
        count = (len(content) - offset) // WORD.itemsize
        there |= np.isin(starts, np.frombuffer(content, WORD, count, offset))
    return [
        name
        for (name, pattern), possible in zip(every, there, strict=True)
        if (possible or len(pattern) < WORD.itemsize) and pattern in content
    ]


def _start(pattern: bytes) -> int:
    return int.from_bytes(pattern[: WORD.itemsize], "little")
