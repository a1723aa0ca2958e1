"""Images: decoding to arrays [height, width, channels] in 0..1, resizing and channels."""

import io
import warnings
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fleetune.data.lfs_pointers import check_content, check_fetched
from fleetune.data.public_words import Told, noted
from fleetune.errors import Refused

Image = np.ndarray[Any, np.dtype[np.float64]]
MAX_PIXELS, MAX_CHANNELS = 1 << 26, 4
FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
"""Formats to decode; Pillow runs external programs for some others."""
DEEP, SIXTEEN_BITS = ("I", "F"), "I;16"
"""Pillow's modes of 32 bits, and the beginning of those of 16."""
PHOTOMETRIC, WHITE_IS_ZERO = 262, 0
"""Tag of TIFF files that says which number is white, and its value where that is 0."""
LONGEST_NAME = 200
"""Characters of a path that are told."""
LUMINANCE = (0.299, 0.587, 0.114)


def as_image(location: str, value: Any, folder: Path | None, nearer: Path | None = None) -> Image:
    """Convert a column's value to an image, float64 [height, width, channels] in 0..1.

    Accepts nested lists or arrays [height, width] or [height, width, 1|3|4] (integers in 0..255, floats in 0..1),
    encoded bytes (of 8 bits; or grey of 16 bits, or in fractions 0..1), images of Pillow, the Image feature of Hugging
    Face datasets, and paths inside `folder` to a .npy or image file (FORMATS). Anything else is Refused; the message
    starts with `location`.
    """
    if isinstance(value, Mapping):  # the Image feature of Hugging Face datasets: {"bytes": ..., "path": ...}
        value = value.get("bytes") or value.get("path")
    if isinstance(value, str):
        value = _resolve_inside(location, value, folder, nearer)
    if isinstance(value, Path):
        location = noted(location, value.name)
        value = _npy(location, value) if value.suffix == ".npy" else _read(location, value)
    if isinstance(value, bytes):
        value = _decoded(location, value)
    elif type(value).__module__.startswith("PIL."):  # as the datasets package has decoded it
        value = _levels(location, value)
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.empty(0, dtype=object)
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4) or not array.size or array.dtype.kind not in "uif":
        raise Told(
            "{location}: not an image; give [height][width] or [height][width][1, 3 or 4] numbers",
            location=location,
        )
    scaled = array / 255.0 if array.dtype.kind in "ui" else array.astype(np.float64)
    if not (np.isfinite(scaled).all() and scaled.min() >= 0 and scaled.max() <= 1):
        raise Told("{location}: pixels must be whole numbers 0..255, or fractions 0..1", location=location)
    return scaled


def resize(image: Image, side: int) -> Image:
    """Resize to [side, side] bilinearly, with antialiasing when the image shrinks."""
    if image.shape[:2] == (side, side):
        return image
    rows, columns = _triangle_weights(image.shape[0], side), _triangle_weights(image.shape[1], side)
    made: Image = np.einsum("yh,hwc,xw->yxc", rows, image, columns, optimize=True)
    return made


def convert_channels(location: str, image: Image, channels: int) -> Image:
    """Convert to `channels`: repeat grey, reduce colour to luminance, drop alpha; Refused for other combinations."""
    if image.shape[2] == 4:
        image = image[:, :, :3]
    if image.shape[2] == channels:
        return image
    if image.shape[2] == 3 and channels == 1:
        grey: Image = image @ np.asarray(LUMINANCE)
        return grey[:, :, None]
    if image.shape[2] == 1:
        return np.repeat(image, channels, axis=2)
    raise Told("{location}: {} channels, but the model takes {}", image.shape[2], channels, location=location)


@lru_cache(maxsize=64)
def _triangle_weights(old: int, new: int) -> Image:
    """Weights [new, old] of a triangle filter as wide as the larger of the two pixel sizes; rows sum to 1."""
    scale = old / new
    centres = (np.arange(new) + 0.5) * scale - 0.5
    distance = np.abs(np.arange(old)[None, :] - np.clip(centres, 0, old - 1)[:, None])
    weights = np.maximum(0.0, 1.0 - distance / max(1.0, scale))
    normed: Image = weights / weights.sum(axis=1, keepdims=True)
    return normed


def _resolve_inside(location: str, name: str, folder: Path | None, nearer: Path | None) -> Path:
    if folder is None:
        raise Told(
            "{location}: holds the path {!r}; with paths, data.source must be the folder that has them",
            name[:LONGEST_NAME],
            location=location,
        )
    path = image_file(name, folder, nearer)
    if path is None:
        raise Told(
            "{location}: no file {!r} inside {}; give paths relative to that folder, or to that of the table within it",
            name[:LONGEST_NAME],
            folder,
            location=location,
        )
    return path


def image_file(name: str, folder: Path, nearer: Path | None = None) -> Path | None:
    """The file inside a folder at a path from it, or from one that is nearer; None if there is none."""
    for place in (nearer or folder, folder):
        try:
            path = (place / name).resolve()
            if path.is_relative_to(folder.resolve()) and path.is_file():
                return path
        except (OSError, ValueError):  # a text that can name no file, such as an image in base64
            continue
    return None


def _npy(location: str, path: Path) -> Any:
    try:
        found = np.load(path, allow_pickle=False, mmap_mode="r")  # mapped: the header may claim any size
    except (OSError, ValueError, EOFError, OverflowError) as error:
        if not isinstance(error, OSError):
            check_fetched(location, path)
        raise Told("{location}: cannot be read as an array ({})", error, location=location) from None
    _check_pixel_count(location, found.size // MAX_CHANNELS)
    return found


def _read(location: str, path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise Told(
            "{location}: cannot be read ({}); give a readable file",
            error.strerror,
            location=location,
        ) from None
    check_content(location, content)
    return content


def _decoded(location: str, encoded: bytes) -> Any:
    from PIL import Image as pillow  # only encoded images need it

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pillow.DecompressionBombWarning)  # _check_pixel_count is stricter
            opened = pillow.open(io.BytesIO(encoded), formats=FORMATS)
        with opened:
            return _levels(location, opened)
    except Refused:
        raise
    except Exception as error:  # a damaged or hostile file can raise any error type
        reason = str(error).strip().split("\n", 1)[0][:200]
        raise Told("{location}: cannot be read as an image ({})", reason, location=location) from None


def _levels(location: str, opened: Any) -> Any:
    """Pixels of an image of Pillow, upright."""
    from PIL import ImageOps

    _check_pixel_count(location, opened.width * opened.height)
    white_is_zero = getattr(opened, "tag_v2", {}).get(PHOTOMETRIC) == WHITE_IS_ZERO
    upright = ImageOps.exif_transpose(opened)  # cameras note how they were held, and leave the pixels
    if opened.mode in DEEP or opened.mode.startswith(SIXTEEN_BITS):
        levels = _deep(location, np.asarray(upright))
        return 1.0 - levels if white_is_zero else levels  # Pillow turns it around in images of 8 bits only
    return np.asarray(upright.convert("RGB" if opened.mode not in ("L", "RGB") else opened.mode))


def _deep(location: str, pixels: Any) -> Image:
    """Grey levels of more than 8 bits as fractions; Pillow itself would make everything above 255 white."""
    scaled: Image = pixels / 65535.0 if pixels.dtype.kind in "ui" else pixels.astype(np.float64)
    if not (np.isfinite(scaled).all() and scaled.min() >= 0 and scaled.max() <= 1):
        raise Told(
            "{location}: its pixels have more than 8 bits and are neither whole numbers 0..65535 nor fractions "
            "0..1; scale them, or save it with 8 bits",
            location=location,
        )
    return scaled


def _check_pixel_count(location: str, pixels: int) -> None:
    """Refuse decompression bombs by the size that their header claims."""
    if pixels > MAX_PIXELS:
        raise Told(
            "{location}: an image of {} pixels, allowed are {max_pixels}; make it smaller",
            pixels,
            location=location,
            max_pixels=MAX_PIXELS,
        )
