"""Joules that a machine has used, by the counters that it offers: RAPL of CPUs, NVML of GPUs, power rails of a Jetson.

All of them count a whole machine or GPU, whatever else runs on it; devices of one machine tell the same counters.
"""

import importlib
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from fleetune.errors import Refused

SYS, BOOT = Path("/sys"), Path("/proc/sys/kernel/random/boot_id")
COUNTED = ("package", "dram")
"""Beginnings of the names of RAPL domains that no other one contains."""
TOTALS = ("VDD_IN", "VIN", "POM_5V_IN")
"""Names of a Jetson's rail that feeds all others."""
SAMPLE_S = 0.1
"""Seconds between two readings of rails, which tell watts at a moment."""


class Counter(Protocol):
    """Counts joules."""

    def joules(self) -> float:
        """Return the joules since any fixed moment; OSError or ValueError where it cannot be read any more."""


class RaplDomain:
    """One domain of RAPL, which counts microjoules and begins anew at its range."""

    def __init__(self, folder: Path) -> None:
        """OSError or ValueError where this process may not read it."""
        self._folder = folder
        self._range_uj = int((folder / "max_energy_range_uj").read_text())
        self._last_uj = self._read_uj()
        self._sum_uj = 0

    def joules(self) -> float:
        """See Counter. Read it more often than its range lasts, which is a quarter of an hour at 300 W."""
        now_uj = self._read_uj()
        self._sum_uj += (now_uj - self._last_uj) % (self._range_uj + 1)
        self._last_uj = now_uj
        return self._sum_uj / 1e6

    def _read_uj(self) -> int:
        return int((self._folder / "energy_uj").read_text())


class Rails:
    """Power rails, whose watts are added up over time by a thread."""

    def __init__(self, rails: Iterable[tuple[Path, Path]], clock: Callable[[], float] = time.monotonic) -> None:
        """rails: files of millivolts and of milliamperes. OSError or ValueError where they cannot be read."""
        self._rails, self._clock = list(rails), clock
        self._change = threading.Lock()
        self._joules, self._at_s, self._watts = 0.0, clock(), self._read_watts()

    def watch(self) -> None:
        """Sample as long as this process lives."""
        threading.Thread(target=self._sample_forever, name="power-rails", daemon=True).start()

    def sample(self) -> float:
        """Add the energy since the last sample, by the trapezoidal rule; return all joules up to now."""
        with self._change:
            now_s, watts = self._clock(), self._read_watts()
            self._joules += (watts + self._watts) / 2 * (now_s - self._at_s)
            self._at_s, self._watts = now_s, watts
            return self._joules

    joules = sample

    def _sample_forever(self) -> None:
        while True:
            time.sleep(SAMPLE_S)
            try:
                self.sample()
            except (OSError, ValueError):
                return

    def _read_watts(self) -> float:
        return sum(int(volts.read_text()) * int(amperes.read_text()) for volts, amperes in self._rails) / 1e6


class Gpu:
    """A GPU's own counter, which NVML tells since Volta."""

    def __init__(self, nvml: Any, uuid: str) -> None:
        nvml.nvmlInit()
        self._nvml, self._handle = nvml, nvml.nvmlDeviceGetHandleByUUID(uuid)
        self.joules()

    def joules(self) -> float:
        """See Counter."""
        return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1000


class EnergyMeter:
    """Joules of the counters of one machine between two calls."""

    def __init__(self, machine: str, counters: Mapping[str, Counter]) -> None:
        """machine: a name that devices of one machine share."""
        self._machine, self._counters = machine, dict(counters)
        self._last = {name: counter.joules() for name, counter in self._counters.items()}

    def take(self) -> dict[str, float]:
        """Return the joules since the last call, by machine and counter; empty where the machine tells none."""
        found = {}
        for name, counter in list(self._counters.items()):
            try:
                now = counter.joules()
            except Exception:  # a driver that has gone; the machine tells its whole energy no more
                self._counters.clear()
                return {}
            found[f"{self._machine}/{name}"] = max(0.0, now - self._last[name])
            self._last[name] = now
        return found


def energy_meter(
    accelerator: str, sys: Path = SYS, boot: Path = BOOT, clock: Callable[[], float] = time.monotonic
) -> EnergyMeter:
    """Return the meter of the machine that this process runs on. accelerator: torch device, `cpu` or `cuda:N`.

    It counts what computes: of `cuda:N` the GPU, of `cpu` the machine's CPUs and memory, of a Jetson the whole module.
    """
    try:
        machine = boot.read_text().strip()
    except OSError:
        return EnergyMeter("", {})
    rails = _rails(sys, clock)
    if rails is not None:
        rails.watch()
        return EnergyMeter(machine, {"rails": rails})
    return EnergyMeter(machine, dict(_gpu(accelerator) if accelerator.startswith("cuda") else _rapl(sys)))


def _rapl(sys: Path) -> Iterator[tuple[str, RaplDomain]]:
    """Yield the domains that together are the machine's CPUs and memory; none where one of them cannot be read."""
    found = {}
    for folder in sorted((sys / "class" / "powercap").glob("intel-rapl:*")):
        try:
            name = (folder / "name").read_text().strip()
            if name.startswith(COUNTED):
                found[f"{folder.name}-{name}"] = RaplDomain(folder)
        except (OSError, ValueError):
            return
    yield from found.items()


def _rails(sys: Path, clock: Callable[[], float]) -> Rails | None:
    """Return a Jetson's rails, as JetPack 5 and later show them; None on other machines."""
    found = {}
    for folder in sorted((sys / "class" / "hwmon").glob("hwmon*")):
        try:
            if (folder / "name").read_text().strip() != "ina3221":
                continue
            for label in sorted(folder.glob("in*_label")):
                number = label.name.removeprefix("in").removesuffix("_label")
                current = folder / f"curr{number}_input"
                if current.exists():
                    found[label.read_text().strip()] = (folder / f"in{number}_input", current)
        except OSError:
            return None
    whole = [found[name] for name in TOTALS if name in found][:1]
    try:
        return Rails(whole or found.values(), clock) if found else None
    except (OSError, ValueError):
        return None


def _gpu(accelerator: str) -> Iterator[tuple[str, Gpu]]:
    """Yield the id and counter of a CUDA device; nothing where NVML or its package is missing."""
    try:
        uuid = f"GPU-{torch.cuda.get_device_properties(accelerator).uuid}"
        gpu = Gpu(importlib.import_module("pynvml"), uuid)
    except Exception:  # no package, no driver, or a GPU without a counter
        return
    yield uuid, gpu


def total_j(told: Iterable[Mapping[str, Any] | None]) -> float | None:
    """Return the joules of a round, from what each of its devices tells; None unless all of them tell.

    A counter that several devices of one machine tell is counted once. Refused if malformed.
    """
    most: dict[str, float] = {}
    for energy in told:
        if not energy:
            return None
        try:
            for name, joules in energy.items():
                if not 0 <= float(joules) < math.inf:
                    raise ValueError(f"{name!s:.80}: {joules}")
                most[str(name)] = max(most.get(str(name), 0.0), float(joules))
        except (AttributeError, TypeError, ValueError) as error:
            raise Refused(f"training: a device tells its energy in words that cannot be read ({error})") from None
    return sum(most.values()) if most else None
