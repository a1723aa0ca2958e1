"""Trainings on containers of this machine's engine that lose a device: how soon that is found."""

import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker

from benchmarks.recovery.losses import AFTER_ROUNDS, CONFIRMED_S
from benchmarks.recovery.workload import CORES, Injection, Recovery, Workload, lose, prepare_workload
from benchmarks.report import Figure, Sheet, median_and_spread
from containers import engine_api
from fleetune.contracts.fleet import DOCKER
from fleetune.contracts.plan import PlanResult
from fleetune.launching import open_sites
from fleetune.launching.docker import cleanup
from fleetune.launching.placement import FleetPlacement
from fleetune.planning.revision import light

IMAGE = "fleetune-mounted"


class ContainerInjection(Injection):
    """Kills or pauses one device's container in the middle of a round."""

    folder: Path
    """Of the training."""

    def _send(self) -> None:
        container = self._container()
        self.at_s = time.time()
        container.kill() if self.number == signal.SIGKILL else container.pause()

    def _container(self) -> Any:
        client = docker.DockerClient(base_url=f"unix://{engine_api.find_engine().socket}", version="auto")
        task = str(self.folder / "work" / "workers" / self.device)
        running = client.containers.list(filters={"label": cleanup.RUN_LABEL}, ignore_removed=True)
        (found,) = [each for each in running if task in " ".join(each.attrs["Config"]["Cmd"])]
        return found


def container_losses(folder: Path, quick: bool, report_progress: Callable[[str], None]) -> Sheet:
    """Return the table of a training on containers that loses each device: killed, and paused."""
    workload = _in_containers(prepare_workload(folder / "containers"))
    plan = workload.plan()
    sheet = Sheet("Four containers as environment D", ("lost", "killed, found in", "paused, lost in", "goes on in"))
    killed, paused = [], []
    for device in ["nano-1"] if quick else list(CORES):
        report_progress(f"the container of {device} is killed, paused")
        killed.append(_lost(workload, plan, device, signal.SIGKILL))
        paused.append(_lost(workload, plan, device, signal.SIGSTOP))
        found_s, lost_s = killed[-1].detected_s, paused[-1].detected_s
        sheet.rows.append((device, f"{found_s * 1e3:.0f} ms", f"{lost_s:.2f} s", f"{killed[-1].recovered_s:.2f} s"))
    sheet.remarks = ["Killed and paused by the engine; the time of its own call is part of what is measured."]
    sheet.figures = [
        Figure(name="container_killed_to_found", unit="s", better="lower", about="docker kill",
               **median_and_spread([each.detected_s for each in killed])),
        Figure(name="container_paused_to_lost", unit="s", target=CONFIRMED_S, better="lower",
               about="docker pause in the middle of a round",
               **median_and_spread([each.detected_s for each in paused])),
        Figure(name="container_recovery", unit="s", better="lower", about="killed: found -> first committed round",
               **median_and_spread([each.recovered_s for each in killed])),
    ]  # fmt: skip
    return sheet


def _in_containers(workload: Workload) -> Workload:
    fleet = workload.problem.fleet
    devices = tuple(replace(each, launcher=DOCKER) for each in fleet.devices)
    return replace(workload, problem=replace(workload.problem, fleet=replace(fleet, devices=devices, image=IMAGE)))


def _lost(workload: Workload, plan: PlanResult, device: str, number: signal.Signals) -> Recovery:
    name = f"{device}-{number.name}"
    injection = ContainerInjection(device, number, AFTER_ROUNDS)
    injection.folder = workload.folder / name
    with open_sites(FleetPlacement.from_fleet(workload.problem.fleet), lambda _: None) as sites:
        return lose(workload, plan, injection, light, name, sites)
