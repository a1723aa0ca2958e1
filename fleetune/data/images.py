"""Images as arrays [height, width, channels] of numbers 0..1: reading, resizing, channels."""

import io
import warnings
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fleetune.errors import Refused

Image = np.ndarray[Any, np.dtype[np.float64]]
MOST_PIXELS, MOST_CHANNELS = 1 << 26, 4
FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
"""What is decoded here; Pillow would run other programs for some others."""
LUMINANCE = (0.299, 0.587, 0.114)


def as_image(where: str, value: Any, folder: Path | None) -> Image:
    """Whatever a column may hold as [height, width, channels] in 0..1.

    Allowed are nested lists or arrays [height, width] or [height, width, 1|3|4] (whole numbers count 0..255, others
    0..1), encoded bytes as Hugging Face datasets hold them, and paths inside the source's folder to a .npy file or
    to an image file (FORMATS).
    """
    if isinstance(value, Mapping):  # the Image feature of Hugging Face datasets: {"bytes": ..., "path": ...}
        value = value.get("bytes") or value.get("path")
    if isinstance(value, str):
        value = _inside(where, value, folder)
    if isinstance(value, Path):
        where = f"{where} ({value.name})"
        value = _npy(where, value) if value.suffix == ".npy" else _read(where, value)
    if isinstance(value, bytes):
        value = _decoded(where, value)
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.empty(0, dtype=object)
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4) or not array.size or array.dtype.kind not in "uif":
        raise Refused(f"{where}: not an image; give [height][width] or [height][width][1, 3 or 4] numbers")
    scaled = array / 255.0 if array.dtype.kind in "ui" else array.astype(np.float64)
    if not (np.isfinite(scaled).all() and scaled.min() >= 0 and scaled.max() <= 1):
        raise Refused(f"{where}: pixels must be whole numbers 0..255, or fractions 0..1")
    return scaled


def resized(image: Image, side: int) -> Image:
    """The image at [side, side], bilinear; every source pixel counts when it shrinks."""
    if image.shape[:2] == (side, side):
        return image
    rows, columns = _weights(image.shape[0], side), _weights(image.shape[1], side)
    made: Image = np.einsum("yh,hwc,xw->yxc", rows, image, columns, optimize=True)
    return made


def with_channels(where: str, image: Image, channels: int) -> Image:
    """Grey is repeated, colour becomes its luminance where one channel is wanted, transparency is dropped."""
    if image.shape[2] == 4:
        image = image[:, :, :3]
    if image.shape[2] == channels:
        return image
    if image.shape[2] == 3 and channels == 1:
        grey: Image = image @ np.asarray(LUMINANCE)
        return grey[:, :, None]
    if image.shape[2] == 1:
        return np.repeat(image, channels, axis=2)
    raise Refused(f"{where}: {image.shape[2]} channels, but the model takes {channels}")


@lru_cache(maxsize=64)
def _weights(old: int, new: int) -> Image:
    """[new, old] weights of a triangle filter as wide as the larger of the two pixels; rows sum to 1."""
    scale = old / new
    centres = (np.arange(new) + 0.5) * scale - 0.5
    distance = np.abs(np.arange(old)[None, :] - np.clip(centres, 0, old - 1)[:, None])
    weights = np.maximum(0.0, 1.0 - distance / max(1.0, scale))
    normed: Image = weights / weights.sum(axis=1, keepdims=True)
    return normed


def _inside(where: str, name: str, folder: Path | None) -> Path:
    if folder is None:
        raise Refused(f"{where}: holds the path {name!r}; with paths, data.source must be the folder that has them")
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()) or not path.is_file():
        raise Refused(f"{where}: no file {name!r} inside {folder}; give paths relative to that folder")
    return path


def _npy(where: str, path: Path) -> Any:
    try:
        found = np.load(path, allow_pickle=False, mmap_mode="r")  # mapped: a header may promise any number of values
    except (OSError, ValueError, EOFError, OverflowError) as error:
        raise Refused(f"{where}: cannot be read as an array ({error})") from None
    _prove_size(where, found.size // MOST_CHANNELS)
    return found


def _read(where: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Refused(f"{where}: cannot be read ({error.strerror}); give a readable file") from None


def _decoded(where: str, encoded: bytes) -> Any:
    from PIL import Image as pillow  # only images need it

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pillow.DecompressionBombWarning)  # we say so ourselves, and sooner
            opened = pillow.open(io.BytesIO(encoded), formats=FORMATS)
        with opened:
            _prove_size(where, opened.width * opened.height)
            return np.asarray(opened.convert("RGB" if opened.mode not in ("L", "RGB") else opened.mode))
    except Refused:
        raise
    except Exception as error:  # a damaged or hostile file may fail anywhere
        reason = str(error).strip().split("\n", 1)[0][:200]
        raise Refused(f"{where}: cannot be read as an image ({reason})") from None


def _prove_size(where: str, pixels: int) -> None:
    """Refuse a few bytes that would become gigabytes, by what they promise."""
    if pixels > MOST_PIXELS:
        raise Refused(f"{where}: an image of {pixels} pixels, allowed are {MOST_PIXELS}; make it smaller")
