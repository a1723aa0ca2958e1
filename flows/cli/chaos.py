"""The command `chaos`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fleetune.contracts.record import record
from fleetune.errors import FleetuneError
from flows.cli.exit_codes import Interrupted
from flows.cli.options import CommonOptions, Sets, with_options
from flows.cli.work import WORK
from flows.interrupts import end_on_sigterm

if TYPE_CHECKING:
    from rich.console import Console

    from flows.chaos.rehearsal import ChaosReport

Config = Annotated[Path, typer.Argument(help="Run file, such as configs/runs/demo.yaml, or its name there: demo.")]


@record
class ChaosOptions(CommonOptions):
    """The options of `chaos`."""

    faults: Annotated[int, typer.Option(metavar="K", help="Number of faults.")] = 3
    seed: Annotated[int, typer.Option(metavar="N", help="Seed that the faults are drawn from.")] = 0
    minutes: Annotated[
        float | None,
        typer.Option(metavar="M", help="Length of each training, whose rounds are chosen by the pace of a short one."),
    ] = None
    sets: Sets = None


@with_options(ChaosOptions)
def chaos(options: ChaosOptions, config: Config) -> None:
    """Train with faults that befall devices, and compare with a training without; exit 1 if they differ."""
    from fleetune.contracts import json_io
    from flows import configs
    from flows.chaos.rehearsal import ChaosRequest
    from flows.cli.progress_display import show_progress
    from flows.context import RunContext
    from flows.form import find_run_file

    end_on_sigterm()
    asked = configs.load(find_run_file(str(config)) or config, options.sets or ())
    request = ChaosRequest(faults=options.faults, seed=options.seed, minutes=options.minutes)
    with show_progress(options) as listener:
        try:
            report = WORK.get().rehearse(RunContext(store=options.store(), listen=listener.on_event), asked, request)
        except KeyboardInterrupt:
            raise Interrupted("stopped; the same command begins both trainings again") from None
    document = {"chaos": asked.name, "ok": report.ok, **json_io.dump(report)}
    if options.as_json:
        options.print_json(document)
    else:
        _print(options.console(), report)
        typer.echo(json.dumps(document, allow_nan=False, ensure_ascii=False))
    if not report.ok:
        broken = "; ".join(f"{check.name}: {check.found}" for check in report.checks if not check.ok)
        raise FleetuneError(f"chaos: not as it should be: {broken}; both trainings are in {report.folder}")


def _print(console: "Console", report: "ChaosReport") -> None:
    """Print the faults, what was checked, and how long both trainings took."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    faults = Table("", "device", "fault", "drawn", "happened", "lost s", box=SIMPLE_HEAD, pad_edge=False)
    for row in report.faults:
        lost = "" if row.lost_s is None else f"{row.lost_s:.2f}"
        faults.add_row(str(row.number), row.device, row.kind, row.asked, row.happened or "never", lost)
    checks = Table("", "check", "found", box=SIMPLE_HEAD, pad_edge=False)
    for check in report.checks:
        checks.add_row("ok" if check.ok else "NO", check.name, check.found)
    console.print(faults)
    console.print(checks)
    starts = f"{report.starts} start{'' if report.starts == 1 else 's'}"
    console.print(
        f"{report.rounds} rounds: {report.met_s:.0f} s with the faults, in {starts}; {report.whole_s:.0f} s without"
    )
    if (found := report.throughput) is not None:
        console.print(
            f"throughput: {found.ratio:.1%} of what the devices that were left could give, {found.lost_s:.0f} s lost; "
            f"but for the coordinator's ends {found.ratio_of_devices:.1%}, {found.lost_s_per_fault:.2f} s lost by each "
            "fault"
        )
        console.print(
            f"undisturbed rounds took {found.pace:.3f} times as long as without faults; beside them, and but for the "
            f"coordinator's ends: {found.ratio_at_pace:.1%}"
        )
