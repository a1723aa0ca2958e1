"""`python -m benchmarks.gpu [--quick]`: training on a GPU beside a plain PyTorch loop, and beside its forecasts.

Trains a Llama with random weights (0.27 billion parameters; 32 samples of 512 tokens a round, 8 at once) on the first
GPU of this machine: in bf16, as adapters on a base of 4 bits, in bf16 on the GPU and a CPU together, and by two workers
that share the GPU.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import torch
import transformers

from benchmarks.entry_point import measure_and_print
from benchmarks.gpu.trained import Case, Trained, Training, cases
from benchmarks.report import Figure, median_and_spread
from fleetune.models.nf4 import pack, unpack

ROUNDS, TURNS = 12, 3
PARITY_TARGET, FORECAST_TARGET = 0.97, 0.1
SIDE = 4096


def measure(folder: Path, quick: bool, report_progress: Callable[[str], None]) -> Iterator[Figure]:
    """Yield the figures; without a GPU each says so."""
    if not torch.cuda.is_available():
        yield Figure(
            name="gpu", value=None, unit="", better="higher", why=f"torch {torch.__version__} sees no GPU here"
        )
        return
    yield unpacking()
    for case in cases(quick):
        report_progress(f"{case.name}: prepare, profile, plan")
        training = Training(case, folder / case.name)
        report_progress(f"{case.name}: train")
        if case.name == "full":
            ours, ratios = beside_plain(training, 1 if quick else TURNS)
            yield Figure(
                name="plain_throughput",
                unit="x plain",
                better="higher",
                target=PARITY_TARGET,
                about="a one-device plan over torch.autocast in a plain loop, in turns",
                **median_and_spread(ratios),
            )
        else:
            ours = training.run(ROUNDS)
        yield from figures(case, ours)


def beside_plain(training: Training, turns: int) -> tuple[Trained, list[float]]:
    """Train in turns with a plain loop; return the last training, and the plain rounds over ours."""
    ratios = []
    for _ in range(turns):
        plain_s = plain_round_s(training)
        ours = training.run(ROUNDS)
        ratios.append(plain_s / ours.round_s)
    return ours, ratios


def plain_round_s(training: Training) -> float:
    """Return the median seconds of a step of the plain loop; the first two do not count."""
    case = training.case
    tokens = training.data_folder / "train" / "input_ids.npy"
    numbers = map(str, (case.batch_samples, case.micro_batch_samples, ROUNDS))
    command = [sys.executable, "-P", "-m", "benchmarks.gpu.plain_loop", str(training.model_folder / "model")]
    ended = subprocess.run([*command, str(tokens), *numbers, "bf16"], capture_output=True, text=True, check=True)
    *times, _ = ended.stdout.split()
    return median(float(each) for each in times[2:])


def figures(case: Case, ours: Trained) -> Iterator[Figure]:
    """Yield the round and the memory of a way, each with the error of its forecast."""
    figure = partial(Figure, better="lower")
    tokens = case.batch_samples * (case.data.max_length or 0)
    plan = " > ".join("+".join(devices) for devices in ours.segments)
    yield Figure(
        name=f"{case.name}_tokens_per_s", unit="tokens/s", better="higher", value=tokens / ours.round_s, about=plan
    )
    error = ours.forecast_round_s / ours.round_s - 1
    yield figure(
        name=f"{case.name}_round_error", unit="", target=FORECAST_TARGET, value=abs(error), about=f"{error:+.1%}"
    )
    for device, peak in ours.peak_bytes.items():
        error = ours.forecast_bytes[device] / peak - 1
        about = f"{error:+.1%} of {peak / 1e9:.2f} GB"
        name = f"{case.name}_memory_error_{device}"
        yield figure(name=name, unit="", target=FORECAST_TARGET, value=abs(error), about=about)


def unpacking() -> Figure:
    """Return the rate at which a weight of 4 bits becomes one in bf16."""
    weight = torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16)
    packed = pack(weight)
    rates = [weight.numel() / each / 1e9 for each in kernel_s(lambda: unpack(packed, weight.shape, weight.dtype))]
    return Figure(
        name="nf4_unpacking", unit="Gelements/s", better="higher", about="4096 x 4096", **median_and_spread(rates)
    )


def kernel_s(call: Callable[[], object], repeats: int = 20) -> Sequence[float]:
    """Return the seconds of each call after three on the GPU's own clock."""
    taken = []
    for turn in range(repeats + 3):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        if turn >= 3:
            taken.append(float(start.elapsed_time(end)) / 1000)
    return taken


def main() -> int:
    """Measure and print."""
    transformers.utils.logging.disable_progress_bar()
    return measure_and_print("gpu", str(__doc__), "a Llama of four small layers, within 60 s", measure)


if __name__ == "__main__":
    sys.exit(main())
