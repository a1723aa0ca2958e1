"""Random problems of kind "deft", of any size and in the setting of the LoLa-DEFT paper's experiments.

The paper prints the devices' factors f_k ~ U(0.5, 1), memory U[1, 6] GB, Rayleigh fading, SNR 10 dB, 100 MHz, and 12
blocks of 24576 parameters of 32 bits (Section VI-A). It does not print the constants of eq. (3) and of memory; ours,
fixed before anything was measured: a forward of a batch takes a = 0.5 s on the normalised device, the backward down to
block l of 12 takes c(l) = 0.5 s * l/12 (so that the deepest block takes nearly twice the shallowest, as Section VI-B
says), M = 1 iteration in a round, and block l needs 1 + 0.25 l GB (a third of the 12 GB of one device, at the deepest).

Its "path loss of 10^-3" can be read in two ways. `far`: 10 dB is what is sent, and arrives as 10 * 10^-3 times the
fading, so that sending decides. `near`: 10 dB is what arrives on average, so that computing decides.
"""

from random import Random
from typing import NamedTuple

from numpy import log2

from fleetune.solving.deft.problem import Problem

BLOCKS = 12
PARAMETER_BITS = 24576 * 32
FORWARD_S, BACKWARD_S, ITERATIONS = 0.5, 0.5, 1
BAND_HZ, SNR = 100e6, 10.0
PATH_LOSS = {"far": 1e-3, "near": 1.0}


class Size(NamedTuple):
    """Number of devices and blocks."""

    devices: int
    blocks: int


def paper_problem(seed: int, devices: int, where: str, bandwidth: str = "joint") -> Problem:
    """A problem in the paper's setting; `where` is a key of PATH_LOSS."""
    random = Random(f"deft {seed} {devices}")
    speeds = [random.uniform(0.5, 1.0) for _ in range(devices)]
    depths = [FORWARD_S + BACKWARD_S * (block + 1) / BLOCKS for block in range(BLOCKS)]
    return Problem(
        bandwidth="equal" if bandwidth == "equal" else "joint",
        compute_s=tuple(tuple(ITERATIONS * depth / speed for depth in depths) for speed in speeds),
        memory_bytes=tuple(random.uniform(1e9, 6e9) for _ in range(devices)),
        block_memory_bytes=tuple(1e9 + 0.25e9 * (block + 1) for block in range(BLOCKS)),
        block_bits=PARAMETER_BITS,
        bandwidth_hz=BAND_HZ,
        spectral_efficiency=tuple(
            float(log2(1 + SNR * PATH_LOSS[where] * random.expovariate(1.0))) for _ in range(devices)
        ),
    )


def random_problem(seed: int, size: Size, *, rows: str = "deepen", bandwidth: str = "joint") -> Problem:
    """A problem with devices 8x apart, channels 60x apart, and computing at 0.03x to 30x of sending, by seed.

    rows: `deepen` (times and memory grow with depth, as CRUNCH requires) or `any` (times of any shape).
    """
    random = Random(f"deft {seed} {size} {rows}")
    weight = 10 ** random.uniform(-1.5, 1.5)
    depths = [1 + block / size.blocks for block in range(size.blocks)]
    needs = [1e9 * depth for depth in depths]
    memory = [need * random.choice((1.0, 1.0, 2.0)) for need in needs]
    memory += [random.uniform(0.5e9, 3e9) for _ in range(size.devices - size.blocks)]
    random.shuffle(memory)
    speeds = [random.uniform(0.5, 4.0) for _ in range(size.devices)]
    return Problem(
        bandwidth="equal" if bandwidth == "equal" else "joint",
        compute_s=tuple(
            tuple(weight * depth / speed * (1.0 if rows == "deepen" else random.uniform(0.4, 1.6)) for depth in depths)
            for speed in speeds
        ),
        memory_bytes=tuple(memory),
        block_memory_bytes=tuple(needs),
        block_bits=PARAMETER_BITS,
        bandwidth_hz=PARAMETER_BITS * size.blocks / 2.0,
        spectral_efficiency=tuple(random.uniform(0.1, 6.0) for _ in range(size.devices)),
    )
