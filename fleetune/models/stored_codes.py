"""Folders whose weights are quantised: read as transformers dequantises them on a CPU, or refused."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleetune.contracts import json_io
from fleetune.errors import Refused

if TYPE_CHECKING:
    from transformers import PretrainedConfig

SETTING = "quantization_config"


def dequantise_when_read(config: "PretrainedConfig", folder: Path) -> dict[str, Any] | None:
    """Return the settings by which transformers reads a folder's quantised weights as plain ones; None if they are
    plain. Refused where it cannot.
    """
    settings = getattr(config, SETTING, None) or getattr(config.get_text_config(decoder=True), SETTING, None)
    if not settings:
        return None
    from transformers.quantizers.auto import AutoHfQuantizer, AutoQuantizationConfig  # takes seconds

    try:
        found = AutoQuantizationConfig.from_dict(dict(settings))
        if not hasattr(found, "dequantize"):
            raise ValueError("transformers computes with its codes, on devices that can")
        found.dequantize = True
        quantizer = AutoHfQuantizer.from_config(found, pre_quantized=True)
        quantizer.validate_environment(device_map=None, weights_only=True)
        if not quantizer.get_weight_conversions():
            raise ValueError("transformers has no conversion of its tensors to plain ones")
    except (ImportError, ValueError, TypeError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:160]
        raise Refused(
            f"model: {folder} holds weights quantised by {settings.get('quant_method')!r}, which cannot be read as "
            f"plain ones here ({reason}); give the model with plain weights (float16, bfloat16 or float32) as source"
        ) from None
    return {**settings, "dequantize": True}


def holds_codes(folder: Path) -> bool:
    """Return whether a folder's configuration says that its weights are quantised."""
    settings = json_io.parse_plain((folder / "config.json").read_bytes(), str(folder / "config.json"))
    return any(part.get(SETTING) for part in (settings, *settings.values()) if isinstance(part, dict))
