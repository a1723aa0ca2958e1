"""The problem of kind "deft": devices, blocks and a band as plain numbers, proven when it is made."""

from typing import Literal

from fleetune.contracts.record import record
from fleetune.errors import Refused
from fleetune.solving.fields import Real
from fleetune.solving.proofs import Axis, at_least, table

LEAST, MOST = 1e-60, 1e60
"""Bits, Hz and bit/s/Hz: between these no product or quotient leaves the range of floats."""
MOST_S = 1e300
MOST_PAIRS = 20_000_000
"""Devices x blocks: some gigabytes of tables."""


@record
class Problem:
    """Give every block a device of its own and a part of the band.

    Block 0 is nearest the output, so its backward is the shortest. Latency of a pair = compute_s + block_bits /
    (its part of the band x spectral_efficiency). Making one proves it; Refused names the first fault by field, device
    and block.
    """

    kind: Literal["deft"] = "deft"
    bandwidth: Literal["equal", "joint"]
    """`equal`: every block has the same part of the band; `joint`: the parts are chosen too."""
    compute_s: tuple[tuple[Real, ...], ...]
    """[device][block]: of one round."""
    memory_bytes: tuple[Real, ...]
    """[device]"""
    block_memory_bytes: tuple[Real, ...]
    """[block]: what a device needs to tune it."""
    block_bits: Real
    """That every device sends in a round."""
    bandwidth_hz: Real
    """Of the whole band."""
    spectral_efficiency: tuple[Real, ...]
    """[device], bit/s/Hz: log2(1 + SNR)."""

    def __post_init__(self) -> None:
        for field, noun in (("memory_bytes", "device"), ("block_memory_bytes", "block")):
            if not getattr(self, field):
                raise Refused(f"{field}: the list is empty; give one number for each {noun}, at least one")
        devices: Axis = ("device", range(len(self.memory_bytes)))
        blocks: Axis = ("block", range(len(self.block_memory_bytes)))
        self._prove_size()
        table("memory_bytes", self.memory_bytes, devices)
        table("block_memory_bytes", self.block_memory_bytes, blocks)
        compute_s = table("compute_s", self.compute_s, devices, blocks)
        if compute_s.max() > MOST_S:
            device, block = divmod(int(compute_s.argmax()), compute_s.shape[1])
            at_least(f"compute_s of device {device}, block {block}", compute_s[device, block], 0, MOST_S)
        table("spectral_efficiency", self.spectral_efficiency, devices)
        for device, efficiency in enumerate(self.spectral_efficiency):
            _above_0(f"spectral_efficiency of device {device}", efficiency, "; leave out a device without a link")
        _above_0("bandwidth_hz", self.bandwidth_hz)
        at_least("block_bits", self.block_bits, 0, MOST)
        if self.block_bits != 0:
            _above_0("block_bits", self.block_bits)

    def _prove_size(self) -> None:
        pairs = len(self.memory_bytes) * len(self.block_memory_bytes)
        if pairs > MOST_PAIRS:
            raise Refused(f"compute_s: {pairs} pairs of device and block; at most {MOST_PAIRS} are planned at once")


def _above_0(field: str, value: float, otherwise: str = "") -> None:
    if value == 0:
        raise Refused(f"{field}: {value} is not above 0; give a number above 0{otherwise}")
    at_least(field, value, 0)
    at_least(field, value, LEAST, MOST)
