"""quantiser.c, where it could be compiled: int8 and int4 groups on a CPU, in the bits of `quantization`, several times
as fast. It is called with addresses, and lets other threads run meanwhile.
"""

import ctypes
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch

from fleetune.contracts.link_codecs import GROUP_ELEMENTS, PACKED, ROTATED, SCALE_BYTES, coded_sample_bytes

LIBRARY_FILE = Path(__file__).with_name(f"quantiser{EXTENSION_SUFFIXES[0]}")
"""The suffix names processor and libc, so that a folder mounted on another machine holds nothing for it."""
_ADDRESS, _NUMBER, _FLAG = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int


def load(path: Path = LIBRARY_FILE) -> ctypes.CDLL | None:
    """Return the library, or None where there is none that works here."""
    try:
        library = ctypes.CDLL(str(path))
        coders = (library.fleetune_quantise, library.fleetune_dequantise)
    except (OSError, AttributeError):
        return None
    shape_and_codec = [_NUMBER, _NUMBER, _FLAG, _FLAG]
    coders[0].argtypes = [_ADDRESS, *shape_and_codec, _ADDRESS, _ADDRESS, _ADDRESS]
    coders[1].argtypes = [_ADDRESS, _ADDRESS, *shape_and_codec, _ADDRESS]
    for coder in coders:
        coder.restype = None
    return library


LIBRARY = load()


def usable(tensor: torch.Tensor) -> bool:
    """True if the library is there and can read the tensor's memory."""
    return LIBRARY is not None and tensor.device.type == "cpu"


def code_bytes(codec: str, elements: int) -> int:
    """Return the bytes of the codes of a sample."""
    return coded_sample_bytes(codec, elements, 1.0) - _groups(elements) * SCALE_BYTES


def _groups(elements: int) -> int:
    return -(-elements // GROUP_ELEMENTS)


def quantise(codec: str, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return what `quantization.quantise` returns of float32 rows [samples, elements] on the CPU."""
    assert LIBRARY is not None and rows.dtype == torch.float32
    samples, elements = rows.shape
    groups = _groups(elements)
    given = rows.contiguous()
    codes = torch.empty((samples, code_bytes(codec, elements)), dtype=torch.uint8 if codec in PACKED else torch.int8)
    scales = torch.empty((samples, groups), dtype=torch.int16)
    largest = torch.empty(samples * groups)
    addresses = (codes.data_ptr(), scales.data_ptr(), largest.data_ptr())
    LIBRARY.fleetune_quantise(given.data_ptr(), samples, elements, codec in PACKED, codec in ROTATED, *addresses)
    return codes, scales, largest


def dequantise(codec: str, codes: torch.Tensor, scales: torch.Tensor, elements: int) -> torch.Tensor:
    """Return what `quantization.dequantise` returns of codes and scales on the CPU; ValueError: sizes that do not fit,
    beyond which memory would be read."""
    assert LIBRARY is not None
    samples = len(scales)
    expected = ((samples, code_bytes(codec, elements)), (samples, _groups(elements)))
    if (codes.shape, scales.shape) != expected or codes.element_size() != 1 or scales.element_size() != 2:
        sizes = f"codes {list(codes.shape)} and scales {list(scales.shape)}"
        raise ValueError(f"codec {codec}: {sizes} do not fit {elements} elements")
    given, units = codes.contiguous(), scales.contiguous()
    rows = torch.empty((samples, elements))
    LIBRARY.fleetune_dequantise(
        given.data_ptr(), units.data_ptr(), samples, elements, codec in PACKED, codec in ROTATED, rows.data_ptr()
    )
    return rows
