"""Image processors that make fractions of pixels before they resize, as DINOv3's.

transformers has them for torchvision only. Theirs resizes with torch's `interpolate`, bilinearly and with antialiasing,
which `images.resize` computes too.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleetune.contracts import json_io
from fleetune.errors import Refused

PROCESSOR = "preprocessor_config.json"
TYPES = ("DINOv3ViTImageProcessor", "DINOv3ViTImageProcessorFast")
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
"""Of ImageNet, which such a processor has if its file names no others."""
ONLY: dict[str, tuple[Any, ...]] = {
    "do_resize": (True,),
    "do_rescale": (True,),
    "do_normalize": (True,),
    "do_center_crop": (False, None),
    "resample": (2,),
    "rescale_factor": (1 / 255,),
}
"""Setting -> the values that are implemented, the first of which is its default."""
DIGITS = 6


@dataclass(frozen=True, kw_only=True)
class FractionSettings:
    """What the file of such a processor says."""

    plain: dict[str, Any]
    """All of it, with `image_mean` and `image_std`."""
    side: int
    """Of the square that images become, in pixels."""


def fraction_settings(folder: Path) -> FractionSettings | None:
    """Return the settings of such a processor in a model's folder; None for a file of another kind, or a damaged one.

    Refused for settings that are not implemented.
    """
    path = folder / PROCESSOR
    try:
        plain = json_io.parse_plain(path.read_bytes(), str(path))
    except (OSError, Refused):
        return None
    if not isinstance(plain, dict) or plain.get("image_processor_type") not in TYPES:
        return None
    for name, allowed in ONLY.items():
        found = plain.get(name, allowed[0])
        same = isinstance(found, float) and round(found, DIGITS) == round(allowed[0], DIGITS)
        if not same and found not in allowed:
            raise Refused(f"{path}: {name} is {found!r}, of which only {allowed[0]!r} is implemented; change it")
    size = plain.get("size", {"height": 224, "width": 224})
    sides = {size.get("height"), size.get("width")} if isinstance(size, dict) else set()
    if len(sides) != 1 or not isinstance(side := next(iter(sides)), int) or side < 1:
        raise Refused(f"{path}: size is {size!r}; give a height and a width that are the same whole number")
    return FractionSettings(plain={"image_mean": MEAN, "image_std": STD, **plain}, side=side)
