"""`python -m tests.support.engine.small_disk CONFIG ROOT`: a run whose disk is full when it has a checkpoint, and a
second one after room was made. Prints what the first one said and left, and why the second one trained."""

import json
import os
import sys
from pathlib import Path

from fleetune.errors import TryAgain
from fleetune.store import Store
from flows import configs
from flows.context import RunContext, StageSelection
from flows.runner import Runner
from flows.tracking import StageEvent
from flows.without_prefect import run_without_prefect

FREE_BYTES = 60_000
"""Room that is left: for lines of logs, and not for a checkpoint."""


def main() -> None:
    """Run twice, with the store at ROOT."""
    config, root = Path(sys.argv[1]), Path(sys.argv[2])
    filler = root / "filler"

    def fill(event: StageEvent) -> None:
        if event.stage == "train" and not filler.exists() and any(root.glob("work/*/checkpoints/*/round.json")):
            room = os.statvfs(root)
            with filler.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, room.f_bavail * room.f_frsize - FREE_BYTES)

    def run() -> Runner:
        context = RunContext(store=Store(root), listen=fill)
        return Runner(context, configs.load(config, ()), StageSelection(until="train"))

    said = ""
    try:
        run_without_prefect(run())
    except TryAgain as error:
        said = str(error)
    places = [path for kind in ("checkpoints/*/*", "saving/*/*/*") for path in root.glob(f"work/*/{kind}")]
    left = sorted(str(path.relative_to(path.parents[1])) for path in places)
    filler.write_bytes(b"")
    again = run_without_prefect(run())
    print(json.dumps({"said": said, "left": left, "why": again.stage("train").why}))  # noqa: T201


if __name__ == "__main__":
    main()
