"""monitor: the events of a training, while it runs or after it -> events."""

from fleetune import monitoring
from fleetune.contracts import wire
from stages.entry import Desk, main


def monitor(desk: Desk) -> None:
    """Follow events.jsonl of train: in its work folder while it runs, in its metrics (with a manifest) afterwards."""
    folder = desk.input("metrics")
    summary = monitoring.follow(
        folder / "events.jsonl", desk.channel.progress, alive=lambda: not (folder / "manifest.json").exists()
    )
    wire.write(summary, desk.output("events") / "events.json")


if __name__ == "__main__":
    main(monitor)
