"""Dry rounds: what a plan's round takes without computing, beside the forecast of its messages and steps alone.

The difference is what a round costs beyond its parts: threads that wake, frames that are packed, the start and the end.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.forecast_error.runs import CaseRunner, FailedRun, FleetCase
from benchmarks.forecast_error.table import failed_row, why_no_figure
from benchmarks.report import Figure, Sheet
from fleetune.clock import Clock
from fleetune.contracts.profile import Profile
from fleetune.errors import FleetuneError
from fleetune.launching import open_sites
from fleetune.launching.placement import ChangedSites, FleetPlacement
from fleetune.training import coordinator
from fleetune.training.dry_worker import DryLauncher
from fleetune.training.task import TrainingTask

LEAST_S, FEWEST, MOST = 10.0, 3, 30
"""Seconds of dry rounds, by their forecast, and how many rounds these are."""
COLUMNS = ("fleet", "plan", "round s", "dry: parts s", "measured s", "from - to", "beyond its parts ms", "of a round")
BEYOND = 0.03
"""Of a round: what the forecast's median error may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """Dry rounds of a plan."""

    fleet: str
    strategy: str
    forecast_s: float
    """Of a round that computes."""
    parts_s: float
    """Of its messages and optimizer steps, without computing."""
    rounds_s: tuple[float, ...]
    """Duration of every dry round."""

    @property
    def beyond_s(self) -> float:
        """What a dry round takes beyond its parts."""
        return statistics.median(self.rounds_s) - self.parts_s


def sheet(cases: Sequence[FleetCase], image: str, folder: Path, report_progress: Callable[[str], None]) -> Sheet:
    """Run dry rounds of all plans; return the table."""
    return table(cases, [run for case in cases for run in _runs(case, image, folder / case.name, report_progress)])


def _runs(
    case: FleetCase, image: str, folder: Path, report_progress: Callable[[str], None]
) -> Iterator[DryRun | FailedRun]:
    """Profile a fleet, and run dry rounds of every plan of its case."""
    runner = CaseRunner(case, image, folder)
    for strategy in case.strategies:
        report_progress(f"{case.name}: {strategy}, dry")
        try:
            runner.profile(strategy)
            yield _dry_run(runner, case, strategy, folder / f"dry-{strategy}")
        except FleetuneError as error:
            yield FailedRun(fleet=case.name, strategy=strategy, why=str(error))


def without_computing(profile: Profile) -> Profile:
    """Return the profile of devices whose forwards and backwards take no time, so that no message waits for one."""
    zeros = tuple((0.0,) * len(profile.batch_sizes) for _ in profile.units)
    times = (replace(each, forward_s=zeros, backward_s=zeros, message_wait_s=0.0, gates=None) for each in profile.times)
    return replace(profile, times=tuple(times))


def table(cases: Sequence[FleetCase], listed: Sequence[DryRun | FailedRun]) -> Sheet:
    """A row for every plan, and the figures."""
    found = Sheet(title="Dry rounds: all of a plan's messages and steps, nothing computed", columns=COLUMNS)
    runs = [each for each in listed if isinstance(each, DryRun)]
    for each in runs:
        span = f"{min(each.rounds_s):.3f} - {max(each.rounds_s):.3f}"
        share = f"{each.beyond_s / each.forecast_s:+.1%}"
        found.rows.append((
            each.fleet, each.strategy, f"{each.forecast_s:.3f}", f"{each.parts_s:.3f}",
            f"{statistics.median(each.rounds_s):.3f}", span, f"{each.beyond_s * 1e3:+.1f}", share,
        ))  # fmt: skip
    failed = [each for each in listed if isinstance(each, FailedRun)]
    found.rows += [failed_row(each, len(COLUMNS)) for each in failed]
    found.remarks = [f"{case.name}: {case.about}" for case in cases]
    found.figures = list(_figures(runs, failed))
    return found


def _figures(runs: Sequence[DryRun], failed: Sequence[FailedRun]) -> Iterator[Figure]:
    name = "dry_round_beyond_its_parts"
    if failed or not runs:
        yield Figure(name=name, value=None, unit="of a round", better="lower", why=why_no_figure(failed))
        return
    shares = [run.beyond_s / run.forecast_s for run in runs]
    yield Figure(
        name=name,
        value=statistics.median(map(abs, shares)),
        unit="of a round",
        target=BEYOND,
        better="lower",
        spread=(min(shares), max(shares)),
        about=f"median over {len(runs)} plans; mean {statistics.mean(shares):+.1%}",
    )


def _dry_run(runner: CaseRunner, case: FleetCase, strategy: str, folder: Path) -> DryRun:
    planned = runner.planned(strategy)
    fleet, profile, result = runner.artifacts(planned)
    round_s = Clock(fleet, profile).forecast(result.plan).round_s
    parts_s = Clock(fleet, without_computing(profile)).forecast(result.plan).round_s
    rounds = max(FEWEST, min(MOST, math.ceil(LEAST_S / parts_s))) if parts_s else MOST
    config = runner.config(strategy, replace(case, rounds=rounds))
    with open_sites(FleetPlacement.from_fleet(fleet), lambda _: None) as sites:
        metrics = coordinator.train(
            TrainingTask(
                plan=result,
                fleet=fleet,
                profile=profile,
                model_folder=runner.store.folder("model", planned.outputs["model"]),
                data_folder=runner.store.folder("data", planned.outputs["data"]),
                model=config.model,
                training=config.training,
                seed=config.seed,
                work=folder / "work",
                output=folder / "output",
                sites=ChangedSites(sites, DryLauncher),
            )
        )
    return DryRun(
        fleet=case.name,
        strategy=strategy,
        forecast_s=round_s,
        parts_s=parts_s,
        rounds_s=tuple(each.round_s for each in metrics.rounds),
    )
