"""monitor: the events of a training, while it runs or after it -> events."""

from fleetune import monitoring
from fleetune.contracts import json_io
from stages.entry_point import StageContext, main


def monitor(context: StageContext) -> None:
    """Follow events.jsonl: in the work folder of train while it runs, in its metrics artifact afterwards."""
    folder = context.input("metrics")
    summary = monitoring.follow(
        folder / "events.jsonl", context.channel.progress, alive=lambda: not (folder / "manifest.json").exists()
    )
    json_io.write(summary, context.output("events") / "events.json")


if __name__ == "__main__":
    main(monitor)
