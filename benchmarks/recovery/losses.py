"""Trainings of real processes that lose a device: how soon it is found, and how soon the training goes on."""

import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from benchmarks.recovery.workload import (
    CORES,
    Injection,
    Recovery,
    Revise,
    Workload,
    commit_intervals_s,
    lose,
    prepare_workload,
)
from benchmarks.report import Figure, Sheet, median_and_spread
from fleetune.contracts.plan import PlanResult
from fleetune.planning.revision import heavy, light

DETECTED_S, CONFIRMED_S, BACKUPS_SHARE = 0.05, 2.0, 0.02
AFTER_ROUNDS = 8
"""Beats of a few seconds are known then, from which the limit of silence follows."""
PAPERS_SPEED_UP = 14.0
"""Light recovers so many times as fast as heavy in the paper (§5.5)."""


def losses(folder: Path, quick: bool, report_progress: Callable[[str], None]) -> Sheet:
    """Return the table of a training that loses each device: killed under light and heavy plans, and frozen."""
    workload = prepare_workload(folder / "full")
    plan = workload.plan()
    devices = ["nano-1"] if quick else list(CORES)
    columns = ("lost", "killed, found in", "frozen, lost in", "light: goes on in", "heavy", "moved", "round", "again")
    sheet = Sheet("Four processes as environment D: light / heavy after a kill", columns)
    killed, frozen, slow = [], [], []
    for device in devices:
        report_progress(f"{device} is killed (light), killed (heavy), frozen")
        easy = _lost(workload, plan, device, signal.SIGKILL, light)
        hard = _lost(workload, plan, device, signal.SIGKILL, heavy)
        still = _lost(workload, plan, device, signal.SIGSTOP, light)
        killed.append(easy)
        slow.append(hard)
        frozen.append(still)
        sheet.rows.append((
            device, f"{easy.detected_s * 1e3:.0f} / {hard.detected_s * 1e3:.0f} ms", f"{still.detected_s:.2f} s",
            f"{easy.recovered_s:.2f} s", f"{hard.recovered_s:.2f} s",
            f"{easy.moved_bytes / 1e6:.1f} / {hard.moved_bytes / 1e6:.1f} MB",
            f"{easy.round_s:.2f} / {hard.round_s:.2f} s", f"{easy.rounds_again} / {hard.rounds_again}",
        ))  # fmt: skip
    groups = " | ".join(" + ".join(segment.devices) for segment in plan.plan.lanes[0].segments)
    sheet.remarks = [
        f"Groups: {groups}; backups every {plan.plan.backup_every_rounds} rounds. Going on: from the entry in the "
        "event log to the first round that is committed, planning and moving included."
    ]
    sheet.figures = _figures(plan, killed, slow, frozen)
    return sheet


def _figures(
    plan: PlanResult, killed: Sequence[Recovery], slow: Sequence[Recovery], frozen: Sequence[Recovery]
) -> list[Figure]:
    every = plan.plan.backup_every_rounds
    return [
        Figure(name="killed_to_found", unit="s", target=DETECTED_S, better="lower",
               about="processes; the least and the most of all kills",
               **median_and_spread([each.detected_s for each in (*killed, *slow)])),
        Figure(name="frozen_to_lost", unit="s", target=CONFIRMED_S, better="lower",
               about="SIGSTOP in the middle of a round", **median_and_spread([each.detected_s for each in frozen])),
        Figure(name="light_recovery", unit="s", better="lower", about="found -> first committed round",
               **median_and_spread([each.recovered_s for each in killed])),
        Figure(name="heavy_over_light_recovery", unit="x", better="higher",
               about=f"the paper's: {PAPERS_SPEED_UP:.0f}, where heavy gathers all weights on one device first",
               **median_and_spread([b.recovered_s / a.recovered_s for a, b in zip(killed, slow, strict=True)])),
        Figure(name="light_over_heavy_measured_throughput", unit="x", better="higher",
               about="median of the last three rounds",
               **median_and_spread([b.round_s / a.round_s for a, b in zip(killed, slow, strict=True)])),
        Figure(name="rounds_again", value=max(each.rounds_again for each in (*killed, *slow, *frozen)), unit="rounds",
               target=every, better="lower", about="most of all losses; the target is the interval of the backups"),
    ]  # fmt: skip


def backups_with_lora(folder: Path, quick: bool, report_progress: Callable[[str], None]) -> list[Figure]:
    """Return what backups add to a round where adapters are trained: trainings with and without them, in turn."""
    report_progress("LoRA, with and without backups")
    workload = prepare_workload(folder / "lora", lora=True)
    plan = workload.plan()
    without = replace(plan, plan=replace(plan.plan, backups=(), backup_every_rounds=0))
    ratios = []
    for number in range(1 if quick else 3):
        times = [
            median(commit_intervals_s(workload, made, 10 if quick else 24, f"{name}-{number}"))
            for name, made in (("with", plan), ("without", without))
        ]
        ratios.append(times[0] / times[1] - 1)
    about = f"every {plan.plan.backup_every_rounds} rounds; of the time from one commit to the next"
    return [
        Figure(name="backups_with_lora", unit="of a round", target=BACKUPS_SHARE, better="lower", about=about,
               **median_and_spread(ratios))
    ]  # fmt: skip


def _lost(workload: Workload, plan: PlanResult, device: str, number: signal.Signals, revise: Revise) -> Recovery:
    name = f"{device}-{number.name}-{revise.__name__}"
    return lose(workload, plan, Injection(device, number, AFTER_ROUNDS), revise, name)
