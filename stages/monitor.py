"""monitor: the events of a training, while it runs or after it -> events."""

from fleetune import monitoring
from fleetune.contracts import wire
from stages.entry import Desk, main


def monitor(desk: Desk) -> None:
    """Follow events.jsonl of train (its work folder while it runs, else its metrics) to the end."""
    summary = monitoring.follow(desk.input("metrics") / "events.jsonl", desk.channel.progress)
    wire.write(summary, desk.output("events") / "events.json")


if __name__ == "__main__":
    main(monitor)
