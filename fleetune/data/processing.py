"""Images as a model wants them: by its own image processor where its folder has one, else resized and normalised."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fleetune.data.examples import Example
from fleetune.data.folder import Array
from fleetune.data.images import resized, with_channels
from fleetune.data.needs import InputNeeds
from fleetune.errors import Refused

PROCESSOR = "preprocessor_config.json"
BILINEAR = 2  # as Pillow numbers its filters


@dataclass(frozen=True, kw_only=True)
class Processing:
    """From an image to pixel values, and how anybody else may do the same."""

    shape: tuple[int, int, int]
    """[channels, height, width] of every sample."""
    pixels: Callable[[Example], Array]
    save: Callable[[Path], None]
    """Writes preprocessor_config.json into a folder."""


def open_processing(needs: InputNeeds, side: int | None, first: tuple[int, int]) -> Processing:
    """What a model's images go through; `side` goes before the model's own size, `first` is the size of an image."""
    if needs.image_processor is None:
        return _plain(needs, side or needs.image_size or max(first))
    return _of_the_model(needs, needs.image_processor, side or needs.image_size, first)


def _plain(needs: InputNeeds, side: int) -> Processing:
    """Bilinear, 0..1, then mean and deviation; what is saved repeats it within a grey level."""

    def pixels(example: Example) -> Array:
        assert not isinstance(example.content, str)
        image = with_channels(example.where, resized(example.content, side), needs.channels)
        normed = (image - np.asarray(needs.image_mean)) / np.asarray(needs.image_std)
        return np.moveaxis(normed, 2, 0)

    def save(folder: Path) -> None:
        channels = needs.channels
        described = {
            "image_processor_type": "ViTImageProcessor",
            "do_resize": True,
            "size": {"height": side, "width": side},
            "resample": BILINEAR,
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": list(needs.image_mean * (channels if len(needs.image_mean) == 1 else 1)),
            "image_std": list(needs.image_std * (channels if len(needs.image_std) == 1 else 1)),
        }
        folder.mkdir(parents=True, exist_ok=True)
        (folder / PROCESSOR).write_text(json.dumps(described, indent=2, sort_keys=True) + "\n", encoding="utf-8")

    return Processing(shape=(needs.channels, side, side), pixels=pixels, save=save)


def _of_the_model(needs: InputNeeds, folder: Path, side: int | None, first: tuple[int, int]) -> Processing:
    """transformers' own processor on bytes 0..255, which is what it was made for."""
    processor = _loaded(folder, side)

    def apply(where: str, image: Array) -> Array:
        try:
            made = processor([image], return_tensors="np", input_data_format="channels_last")["pixel_values"][0]
        except Exception as error:  # processors check themselves, each with an error of its own
            reason = " ".join(str(error).split())[:160]
            raise Refused(f"{where}: the model's image processor cannot take it ({reason}); see {folder}") from None
        return np.asarray(made)

    shape = apply(str(folder / PROCESSOR), np.zeros((*first, needs.channels), dtype=np.uint8)).shape
    if len(shape) != 3:
        raise Refused(
            f"{folder / PROCESSOR}: it makes {list(shape)} of an image; allowed are [channels, height, width]"
        )

    def pixels(example: Example) -> Array:
        assert not isinstance(example.content, str)
        levels = np.rint(with_channels(example.where, example.content, needs.channels) * 255).astype(np.uint8)
        made = apply(example.where, levels)
        if made.shape != shape:
            raise Refused(
                f"{example.where}: the model's image processor makes {list(made.shape)} of it and {list(shape)} of the "
                "first image; crop all images to one shape"
            )
        return made

    return Processing(shape=shape, pixels=pixels, save=processor.save_pretrained)


def _loaded(folder: Path, side: int | None) -> Any:
    """The processor, without torchvision; with `side` it resizes (and crops) to that."""
    from transformers import AutoImageProcessor  # seconds to import, and only prepare needs it

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
    except Exception as error:  # a damaged file may fail anywhere
        reason = " ".join(str(error).split())[:200]
        raise Refused(f"{folder / PROCESSOR}: not a usable image processor ({reason}); fetch the model again") from None
