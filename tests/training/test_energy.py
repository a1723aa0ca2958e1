"""Joules of a round, by the counters of made-up machines: RAPL, a Jetson's rails, a GPU, or none."""

from pathlib import Path
from sys import modules
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fleetune.errors import Refused
from fleetune.training.energy import EnergyMeter, Rails, energy_meter, total_j

BOOT_ID = "0a1b"
RANGE_UJ = 999_999


@pytest.fixture
def boot(tmp_path: Path) -> Path:
    """The file with the id by which processes of one machine know it."""
    (tmp_path / "boot_id").write_text(f"{BOOT_ID}\n")
    return tmp_path / "boot_id"


def domain(sys: Path, folder: str, name: str, energy_uj: int) -> Path:
    """A RAPL domain; returns the file of its counter."""
    made = sys / "class" / "powercap" / folder
    made.mkdir(parents=True, exist_ok=True)
    (made / "name").write_text(f"{name}\n")
    (made / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
    (made / "energy_uj").write_text(f"{energy_uj}\n")
    return made / "energy_uj"


def rail(sys: Path, number: int, label: str, millivolts: int, milliamperes: int) -> Path:
    """A power rail; returns the file of its current."""
    made = sys / "class" / "hwmon" / "hwmon3"
    made.mkdir(parents=True, exist_ok=True)
    (made / "name").write_text("ina3221\n")
    (made / f"in{number}_label").write_text(f"{label}\n")
    (made / f"in{number}_input").write_text(f"{millivolts}\n")
    (made / f"curr{number}_input").write_text(f"{milliamperes}\n")
    return made / f"curr{number}_input"


def test_rapl_counts_packages_and_memory_once_and_over_its_range(tmp_path: Path, boot: Path) -> None:
    """Cores are part of their package; a counter that has begun anew goes on from there."""
    package = domain(tmp_path, "intel-rapl:0", "package-0", 900_000)
    memory = domain(tmp_path, "intel-rapl:0:1", "dram", 0)
    domain(tmp_path, "intel-rapl:0:0", "core", 0)
    meter = energy_meter("cpu", tmp_path, boot)
    package.write_text("100000\n")
    memory.write_text("50000\n")
    told = meter.take()
    assert told == {
        f"{BOOT_ID}/intel-rapl:0-package-0": pytest.approx(0.2),
        f"{BOOT_ID}/intel-rapl:0:1-dram": pytest.approx(0.05),
    }
    assert set(meter.take().values()) == {0.0}


def test_a_counter_that_cannot_be_read_is_none(tmp_path: Path, boot: Path) -> None:
    """A machine of which one package tells nothing would be told too small, so it tells nothing."""
    domain(tmp_path, "intel-rapl:0", "package-0", 0)
    domain(tmp_path, "intel-rapl:1", "package-1", 0).unlink()
    assert energy_meter("cpu", tmp_path, boot).take() == {}
    assert energy_meter("cpu", tmp_path / "nothing", boot).take() == {}
    assert energy_meter("cpu", tmp_path, tmp_path / "no boot id").take() == {}


def test_a_counter_that_goes_ends_the_telling(tmp_path: Path, boot: Path) -> None:
    """A driver that is unloaded while the model is trained ends no training."""
    counter = domain(tmp_path, "intel-rapl:0", "package-0", 0)
    meter = energy_meter("cpu", tmp_path, boot)
    counter.unlink()
    assert meter.take() == {}
    assert meter.take() == {}


def test_rails_are_added_up_over_time(tmp_path: Path) -> None:
    """Watts that rise from 5 to 10 in two seconds are 15 J."""
    current = rail(tmp_path, 1, "VDD_IN", 5000, 1000)
    rails = Rails([(current.with_name("in1_input"), current)], clock=iter((0.0, 2.0, 3.0)).__next__)
    current.write_text("2000\n")
    assert rails.sample() == pytest.approx(15.0)
    assert rails.joules() == pytest.approx(25.0)


def test_of_a_jetson_the_rail_that_feeds_the_others_counts(
    tmp_path: Path, boot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """VDD_IN holds what the other rails take; without it all are added."""
    monkeypatch.setattr(Rails, "watch", lambda self: None)  # replaced: its thread would look at the clock in between
    rail(tmp_path, 1, "VDD_IN", 5000, 1000)
    rail(tmp_path, 2, "VDD_CPU", 5000, 400)

    def a_second_j() -> dict[str, float]:
        return energy_meter("cuda:0", tmp_path, boot, clock=iter((0.0, 0.0, 1.0)).__next__).take()

    assert a_second_j() == {f"{BOOT_ID}/rails": pytest.approx(5.0)}
    (tmp_path / "class" / "hwmon" / "hwmon3" / "in1_label").write_text("VDD_GPU_SOC\n")
    assert a_second_j() == {f"{BOOT_ID}/rails": pytest.approx(7.0)}


def test_a_gpu_counts_for_itself(tmp_path: Path, boot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML tells millijoules of the GPU that the device computes with; without its package nothing is told."""
    told = iter((1000, 1000, 4500))
    nvml = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: next(told),
    )
    domain(tmp_path, "intel-rapl:0", "package-0", 0)
    assert energy_meter("cuda:0", tmp_path, boot).take() == {}
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda accelerator: SimpleNamespace(uuid="7"))
    monkeypatch.setitem(modules, "pynvml", nvml)
    assert energy_meter("cuda:0", tmp_path, boot).take() == {f"{BOOT_ID}/GPU-7": 3.5}


@pytest.mark.parametrize(
    ("told", "joules"),
    [
        ([{"m1/package": 2.0}, {"m2/package": 3.0}], 5.0),
        ([{"m1/package": 2.0, "m1/dram": 0.5}, {"m1/package": 2.25, "m1/dram": 0.5}], 2.75),
        ([{"m1/package": 2.0}, {}], None),
        ([{"m1/package": 2.0}, None], None),
        ([], None),
    ],
)
def test_a_round_has_joules_if_all_its_devices_tell(told: list[Any], joules: float | None) -> None:
    """Machines add up, a counter that two devices share counts once, and a device that tells none leaves none."""
    assert total_j(told) == joules


def test_nonsense_is_refused() -> None:
    """What a device sends is not trusted."""
    with pytest.raises(Refused, match="energy in words that cannot be read"):
        total_j([{"m1/package": "much"}])
    with pytest.raises(Refused, match="energy in words that cannot be read"):
        total_j([{"m1/package": float("nan")}])
    with pytest.raises(Refused, match="energy in words that cannot be read"):
        total_j([["m1/package"]])  # type: ignore[list-item]


def test_this_machine_is_asked_without_an_error() -> None:
    """Whatever this machine offers, a meter tells joules that are not negative."""
    assert all(joules >= 0 for joules in energy_meter("cpu").take().values())
    assert EnergyMeter("m", {}).take() == {}
