"""Image inputs: the model's own image processor if its folder has one, else bilinear resizing and normalisation."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fleetune.contracts.input_spec import InputSpec
from fleetune.data.examples import Example
from fleetune.data.fraction_settings import PROCESSOR, FractionSettings, fraction_settings
from fleetune.data.images import convert_channels, resize
from fleetune.data.labels import LabelMapping, label_array, label_info
from fleetune.data.prepared_data import LABELS, PATCH_GRID, PATCH_MASK, PIXELS, Array, ArrayInfo
from fleetune.data.public_words import Told

BILINEAR = 2  # Pillow's number for the filter
PATCHED = (PIXELS, PATCH_MASK, PATCH_GRID)
"""What is stored of an image that is cut into patches and keeps its shape."""


@dataclass(frozen=True, kw_only=True)
class ImageProcessor:
    """Turns images into pixel values, and saves a config that reproduces this with transformers."""

    shapes: Mapping[str, tuple[int, ...]]
    """Array -> its shape for one sample; `pixel_values` has [channels, height, width], or [patches, numbers of one]."""
    pixels: Callable[[Example], dict[str, Array]]
    """Returns one sample of each array."""
    save: Callable[[Path], None]
    """Writes preprocessor_config.json into the given folder."""


@dataclass(frozen=True, kw_only=True)
class ImageEncoder:
    """Encodes images: pixels [samples, channels, height, width], or patches and their places; labels [samples]."""

    processing: ImageProcessor
    precision: str
    task: str
    classes: LabelMapping

    def arrays(self, samples: int) -> tuple[ArrayInfo, ...]:
        """Describe the arrays that hold `samples` samples."""
        stored = (
            ArrayInfo(name=name, dtype=self.precision if name == PIXELS else "int32", shape=(samples, *shape))
            for name, shape in self.processing.shapes.items()
        )
        return (*stored, label_info(samples, self.task, self.classes))

    def encode(self, chunk: list[Example]) -> dict[str, Array]:
        """Return the rows of a chunk by array name."""
        return {**stacked(self.processing, chunk), LABELS: label_array(chunk, self.task, self.classes)}


def stacked(processing: ImageProcessor, chunk: list[Example]) -> dict[str, Array]:
    """Return the arrays of a chunk of images."""
    made = [processing.pixels(example) for example in chunk]
    return {name: np.stack([each[name] for each in made]) for name in processing.shapes}


def open_image_processor(spec: InputSpec, side: int | None, first: tuple[int, int]) -> ImageProcessor:
    """Open the image processor for a model.

    `side` (pixels) overrides the model's own size; `first` is (height, width) of the first image of the data set.
    """
    if spec.image_processor is not None and (told := fraction_settings(spec.image_processor)) is not None:
        return _fraction_processor(told, spec.channels, side or spec.image_size)
    if spec.image_processor is not None:
        loaded = _load_processor(spec.image_processor, side or spec.image_size)
        return _model_processor(loaded, spec.channels, spec.image_processor, first)
    if spec.patches is not None:
        return _model_processor(_patching(spec.patches, side), spec.channels, Path(PROCESSOR), first)
    return _default_processor(spec, side or spec.image_size or max(first))


def reopen_image_processor(folder: Path, shape: tuple[int, ...]) -> ImageProcessor:
    """Open the processor that was saved with prepared data. shape: of `pixel_values`, for one sample."""
    if (told := fraction_settings(folder)) is not None:
        return _fraction_processor(told, shape[0], None)
    loaded = _load_processor(folder, None)
    channels = shape[0] if len(shape) == 3 else shape[1] // loaded.patch_size**2
    return _model_processor(loaded, channels, folder, (shape[-2], shape[-1]))


def _patching(patches: tuple[int, int], side: int | None) -> Any:
    """Return transformers' processor that keeps an image's shape. patches: the side of one in pixels, and how many."""
    from transformers import Siglip2ImageProcessorPil  # takes seconds to import, and only preparation needs it

    patch, most = patches
    return Siglip2ImageProcessorPil(patch_size=patch, max_num_patches=most if side is None else (side // patch) ** 2)


def _default_processor(spec: InputSpec, side: int) -> ImageProcessor:
    """Resize bilinearly to 0..1, then normalise; the saved config reproduces the pixels up to one grey level."""
    repeats = {"image_mean": spec.image_mean, "image_std": spec.image_std}
    described = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": side, "width": side},
        "resample": BILINEAR,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        **{name: list(found * (spec.channels if len(found) == 1 else 1)) for name, found in repeats.items()},
    }
    return _resizing_processor(spec.channels, side, described)


def _fraction_processor(told: FractionSettings, channels: int, side: int | None) -> ImageProcessor:
    """Resize as a processor does that makes fractions of pixels first, and save its own settings."""
    side = side or told.side
    return _resizing_processor(channels, side, {**told.plain, "size": {"height": side, "width": side}})


def _resizing_processor(channels: int, side: int, described: Mapping[str, Any]) -> ImageProcessor:
    """Resize fractions 0..1 bilinearly, then normalise. described: what is saved."""
    mean, std = np.asarray(described["image_mean"]), np.asarray(described["image_std"])

    def pixels(example: Example) -> dict[str, Array]:
        assert isinstance(example.content, np.ndarray)
        image = convert_channels(example.location, resize(example.content, side), channels)
        return {PIXELS: np.moveaxis((image - mean) / std, 2, 0)}

    def save(folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / PROCESSOR).write_text(json.dumps(described, indent=2, sort_keys=True) + "\n", encoding="utf-8")

    return ImageProcessor(shapes={PIXELS: (channels, side, side)}, pixels=pixels, save=save)


def _model_processor(processor: Any, channels: int, folder: Path, first: tuple[int, int]) -> ImageProcessor:
    """Apply transformers' own processor to uint8 images 0..255, its usual input."""

    def apply(location: str, image: Array) -> dict[str, Array]:
        try:
            made = processor([image], return_tensors="np", input_data_format="channels_last")
            return {name: np.asarray(made[name][0]) for name in (PATCHED if PATCH_GRID in made else (PIXELS,))}
        except Exception as error:  # each processor raises its own error types
            reason = " ".join(str(error).split())[:160]
            raise Told(
                "{location}: the model's image processor rejects it ({}); see {}",
                reason,
                folder,
                location=location,
            ) from None

    found = apply(str(folder / PROCESSOR), np.zeros((*first, channels), dtype=np.uint8))
    shapes = {name: array.shape for name, array in found.items()}
    shape = shapes[PIXELS]
    if len(shape) != (2 if PATCH_GRID in shapes else 3):
        raise Told(
            "{}: it turns an image into shape {}; allowed is [channels, height, width]",
            folder / PROCESSOR,
            list(shape),
        )

    def pixels(example: Example) -> dict[str, Array]:
        assert isinstance(example.content, np.ndarray)
        levels = np.rint(convert_channels(example.location, example.content, channels) * 255).astype(np.uint8)
        made = apply(example.location, levels)
        if made[PIXELS].shape != shape:
            raise Told(
                "{location}: the model's image processor makes {} of it and {} of the first image; crop all images "
                "to one shape",
                list(made[PIXELS].shape),
                list(shape),
                location=example.location,
            )
        return made

    return ImageProcessor(shapes=shapes, pixels=pixels, save=processor.save_pretrained)


def _load_processor(folder: Path, side: int | None) -> Any:
    """Load the processor with its Pillow backend (no torchvision); with `side` it makes images of that size."""
    from transformers import AutoImageProcessor  # takes seconds to import, and only preparation needs it

    def load(**changes: Any) -> Any:
        return AutoImageProcessor.from_pretrained(
            folder, local_files_only=True, backend="pil", trust_remote_code=False, **changes
        )

    try:
        found = load()
        if side is None:
            return found
        if hasattr(found, "max_num_patches"):
            return load(max_num_patches=(side // found.patch_size) ** 2)
        return load(**_scaled(found, side))
    except Exception as error:  # a damaged file can raise any error type
        reason = " ".join(str(error).split())[:200]
        raise Told(
            "{}: not a usable image processor ({}); fetch the model again",
            folder / PROCESSOR,
            reason,
        ) from None


def _scaled(found: Any, side: int) -> dict[str, dict[str, int]]:
    """Sizes by which a processor makes images of that side, of which it crops the same share as at its own size."""
    size = dict(found.size)
    crop = dict(found.crop_size) if getattr(found, "do_center_crop", None) else {}
    edge = size.get("shortest_edge") or size.get("height") or crop.get("height") or side
    cropped = crop.get("height") or edge
    made = cropped if size.get("shortest_edge") else min(edge, cropped)  # Perceiver's crops first

    def square(pixels: int) -> dict[str, int]:
        return dict.fromkeys(("height", "width"), round(side * pixels / made))

    resized = square(edge)
    kept = {"shortest_edge": resized["height"]} if size.get("shortest_edge") else resized
    return {"size": kept, **({"crop_size": square(cropped)} if crop else {})}
