"""Image inputs: the model's own image processor if its folder has one, else bilinear resizing and normalisation."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fleetune.contracts.input_spec import InputSpec
from fleetune.data.examples import Example
from fleetune.data.images import convert_channels, resize
from fleetune.data.labels import LabelMapping, label_array, label_info
from fleetune.data.prepared_data import LABELS, PIXELS, Array, ArrayInfo
from fleetune.errors import Refused

PROCESSOR = "preprocessor_config.json"
BILINEAR = 2  # Pillow's number for the filter


@dataclass(frozen=True, kw_only=True)
class ImageProcessor:
    """Turns images into pixel values, and saves a config that reproduces this with transformers."""

    shape: tuple[int, int, int]
    """[channels, height, width] of every sample."""
    pixels: Callable[[Example], Array]
    save: Callable[[Path], None]
    """Writes preprocessor_config.json into the given folder."""


@dataclass(frozen=True, kw_only=True)
class ImageEncoder:
    """Encodes images: pixels [samples, channels, height, width]; labels [samples]."""

    processing: ImageProcessor
    precision: str
    task: str
    classes: LabelMapping

    def arrays(self, samples: int) -> tuple[ArrayInfo, ...]:
        """Describe the arrays that hold `samples` samples."""
        return (
            ArrayInfo(name=PIXELS, dtype=self.precision, shape=(samples, *self.processing.shape)),
            label_info(samples, self.task, self.classes),
        )

    def encode(self, chunk: list[Example]) -> dict[str, Array]:
        """Return the rows of a chunk by array name."""
        pixels = np.stack([self.processing.pixels(example) for example in chunk])
        return {PIXELS: pixels, LABELS: label_array(chunk, self.task, self.classes)}


def open_image_processor(spec: InputSpec, side: int | None, first: tuple[int, int]) -> ImageProcessor:
    """Open the image processor for a model.

    `side` (pixels) overrides the model's own size; `first` is (height, width) of the first image of the data set.
    """
    if spec.image_processor is None:
        return _default_processor(spec, side or spec.image_size or max(first))
    return _model_processor(spec, spec.image_processor, side or spec.image_size, first)


def _default_processor(spec: InputSpec, side: int) -> ImageProcessor:
    """Resize bilinearly to 0..1, then normalise; the saved config reproduces the pixels up to one grey level."""

    def pixels(example: Example) -> Array:
        assert isinstance(example.content, np.ndarray)
        image = convert_channels(example.location, resize(example.content, side), spec.channels)
        normed = (image - np.asarray(spec.image_mean)) / np.asarray(spec.image_std)
        return np.moveaxis(normed, 2, 0)

    def save(folder: Path) -> None:
        channels = spec.channels
        described = {
            "image_processor_type": "ViTImageProcessor",
            "do_resize": True,
            "size": {"height": side, "width": side},
            "resample": BILINEAR,
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": list(spec.image_mean * (channels if len(spec.image_mean) == 1 else 1)),
            "image_std": list(spec.image_std * (channels if len(spec.image_std) == 1 else 1)),
        }
        folder.mkdir(parents=True, exist_ok=True)
        (folder / PROCESSOR).write_text(json.dumps(described, indent=2, sort_keys=True) + "\n", encoding="utf-8")

    return ImageProcessor(shape=(spec.channels, side, side), pixels=pixels, save=save)


def _model_processor(spec: InputSpec, folder: Path, side: int | None, first: tuple[int, int]) -> ImageProcessor:
    """Apply transformers' own processor to uint8 images 0..255, its usual input."""
    processor = _load_processor(folder, side)

    def apply(location: str, image: Array) -> Array:
        try:
            made = processor([image], return_tensors="np", input_data_format="channels_last")["pixel_values"][0]
        except Exception as error:  # each processor raises its own error types
            reason = " ".join(str(error).split())[:160]
            raise Refused(f"{location}: the model's image processor rejects it ({reason}); see {folder}") from None
        return np.asarray(made)

    shape = apply(str(folder / PROCESSOR), np.zeros((*first, spec.channels), dtype=np.uint8)).shape
    if len(shape) != 3:
        raise Refused(
            f"{folder / PROCESSOR}: it turns an image into shape {list(shape)}; allowed is [channels, height, width]"
        )

    def pixels(example: Example) -> Array:
        assert isinstance(example.content, np.ndarray)
        levels = np.rint(convert_channels(example.location, example.content, spec.channels) * 255).astype(np.uint8)
        made = apply(example.location, levels)
        if made.shape != shape:
            raise Refused(
                f"{example.location}: the model's image processor makes {list(made.shape)} of it and {list(shape)} of "
                "the first image; crop all images to one shape"
            )
        return made

    return ImageProcessor(shape=shape, pixels=pixels, save=processor.save_pretrained)


def _load_processor(folder: Path, side: int | None) -> Any:
    """Load the processor with its Pillow backend (no torchvision); with `side` it resizes and crops to that size."""
    from transformers import AutoImageProcessor  # takes seconds to import, and only preparation needs it

    def load(**changes: Any) -> Any:
        return AutoImageProcessor.from_pretrained(
            folder, local_files_only=True, backend="pil", trust_remote_code=False, **changes
        )

    try:
        found = load()
        if side is None:
            return found
        square = {"height": side, "width": side}
        size = {"shortest_edge": side} if dict(found.size).get("shortest_edge") else square
        return load(size=size, **({"crop_size": square} if getattr(found, "do_center_crop", None) else {}))
    except Exception as error:  # a damaged file can raise any error type
        reason = " ".join(str(error).split())[:200]
        raise Refused(f"{folder / PROCESSOR}: not a usable image processor ({reason}); fetch the model again") from None
