"""What runs on a GPU by itself: codecs, 4-bit weights, copies to and from links, dropout in parts, and memory."""

import subprocess
import sys

import pytest
import torch
from torch.nn import functional

from fleetune.codecs import decode, encode
from fleetune.contracts.link_codecs import CODECS, FORWARD_MASK, SPARSE, TOP_K
from fleetune.launching.process_limits import is_out_of_memory
from fleetune.models.device_memory import DeviceCopies, PeakMemory, held_bytes, outside_bytes
from fleetune.models.nf4 import pack, unpack

GPU = torch.device("cuda:0")


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_codecs_give_the_bytes_of_cpus(codec: str, dtype: torch.dtype) -> None:
    """What a GPU sends is what a CPU would send, but for products of rotations, whose last bits differ.

    Both read it alike.
    """
    tensor = torch.randn(6, 5000, generator=torch.Generator().manual_seed(1)).to(dtype)
    ratio = 7.0 if codec in SPARSE else 1.0
    forward = torch.randn(6, 5000, generator=torch.Generator().manual_seed(2)).to(dtype)
    kept = encode(TOP_K, forward, 7.0).kept if codec == FORWARD_MASK else None
    here, there = encode(codec, tensor, ratio, kept), encode(codec, tensor.to(GPU), ratio, kept)
    assert here.description == there.description
    if "hadamard" not in codec:
        assert all(torch.equal(a.view(-1), b.cpu().view(-1)) for a, b in zip(here.parts, there.parts, strict=True))
    assert all(part.is_cuda for part in there.parts) or codec in SPARSE, "they are copied once, with the message"
    mask = here.kept if codec == TOP_K else kept
    ours = decode(here.description, here.parts, torch.device("cpu"), mask).float()
    theirs = decode(there.description, there.parts, GPU, mask).float()
    assert theirs.is_cuda
    assert float((ours - theirs.cpu()).norm()) <= (0.02 if "hadamard" in codec else 0.0) * float(ours.norm())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_four_bits_are_packed_and_unpacked_as_on_cpus(dtype: torch.dtype) -> None:
    """More than one portion, with an uneven end."""
    weight = torch.randn(4100, 4099, generator=torch.Generator().manual_seed(1)).to(dtype)
    there = pack(weight.to(GPU))
    assert torch.equal(pack(weight), there.cpu())
    assert torch.equal(unpack(pack(weight), weight.shape, dtype), unpack(there, weight.shape, dtype).cpu())


def test_copies_hold_what_kernels_made_before_and_what_they_read_after() -> None:
    """Behind kernels that still run, and with memory that is let go and used again at once."""
    copies = DeviceCopies(GPU)
    slow = torch.randn(4096, 4096, device=GPU)
    for turn in range(20):
        made = (slow @ slow).mul_(0).add_(turn)
        (sent,) = copies.to_host([made[0]])
        del made
        torch.empty(4096, 4096, device=GPU).fill_(-1)
        assert sent.is_pinned() and torch.equal(sent, torch.full((4096,), float(turn)))
        there = copies.to_device(sent)
        assert torch.equal((there + 1).cpu(), sent + 1)


def test_dropout_in_parts_draws_what_torch_draws() -> None:
    """Ones that torch's dropout lets through are where it lets anything of that shape through."""
    value = torch.randn(8, 130, 64, device=GPU, dtype=torch.float64)
    torch.cuda.manual_seed(5)
    whole = functional.dropout(value, 0.1)
    torch.cuda.manual_seed(5)
    assert torch.equal(whole, value * functional.dropout(torch.ones_like(value), 0.1))


def test_memory_counts_the_context_and_the_peak() -> None:
    """Of this process alone where NVML knows it."""
    peak = PeakMemory(GPU)
    before, held = peak.bytes(), held_bytes(GPU)
    block = torch.ones(256 << 20, dtype=torch.uint8, device=GPU)
    assert held_bytes(GPU) - held >= 256 << 20
    del block
    assert peak.bytes() - before >= 0 and peak.bytes() >= outside_bytes(GPU) + (256 << 20)
    assert 50e6 < outside_bytes(GPU) < 3e9


ALONE = """
import torch
from fleetune.launching.process_limits import is_out_of_memory
from fleetune.models.device_memory import compute_on
device = torch.device("cuda:0")
compute_on(device, 2 << 30)
held = torch.ones(512 << 20, dtype=torch.uint8, device=device)
try:
    torch.ones(2 << 30, dtype=torch.uint8, device=device)
except Exception as error:
    print(is_out_of_memory(error))
"""


def test_a_process_gets_no_more_than_its_share_of_a_gpu() -> None:
    """And the error is one of memory."""
    ended = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "True", ended.stderr


def test_errors_of_a_full_gpu_are_errors_of_memory() -> None:
    """Far more than any GPU has."""
    with pytest.raises(Exception) as caught:
        torch.ones(1 << 50, dtype=torch.uint8, device=GPU)
    assert is_out_of_memory(caught.value)


def test_a_cpus_worker_beside_a_gpu_leaves_it_alone() -> None:
    """Bug: seeds were queued for a GPU that was never used, one for each unit of each micro-batch, and the profile of a
    CPU made a context."""
    code = (
        "import torch\n"
        "from fleetune.models.randomness import RandomContext\n"
        "from fleetune.profiling.timing import TimingSettings, read_clock\n"
        "RandomContext(1, 0, 0, 0, 1).seed_unit('x')\n"
        "read_clock(TimingSettings(batch_sizes=(1,)))\n"
        "print(torch.cuda.is_initialized(), len(torch.cuda._queued_calls))\n"
        "before = len(torch.cuda._queued_calls)\n"
        "RandomContext(1, 0, 0, 0, 1).seed_unit('y')\n"
        "print(len(torch.cuda._queued_calls) - before)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, added = ended.stdout.split("\n")[:2]
    assert first.startswith("False") and added == "0", ended.stdout
