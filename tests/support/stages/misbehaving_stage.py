"""A stage that ends as its task's config says, run as `python -m tests.support.stages.misbehaving_stage`."""

import os
import signal
import subprocess
import sys
import time
from typing import Any

from fleetune.errors import Infeasible, Refused, TryAgain
from stages.entry_point import StageContext, main

RAISED: dict[str, Any] = {
    "refused": Refused("given 3, allowed are 1 and 2,\nchoose one"),
    "infeasible": Infeasible("device a lacks 3 bytes"),
    "try again": TryAgain("device a left"),
    "unexpected": KeyError("a key nobody thought of"),
}


def misbehave(context: StageContext) -> None:
    """Do what the config's `how` says."""
    how = context.task.config["how"]
    context.channel.progress("oddities", 1, 3, "steps")
    context.channel.note("a remark")
    sys.stdout.write("a library prints\n")
    os.write(1, b"so does a C library\n")
    if how in RAISED:
        raise RAISED[how]
    if how == "full disk":
        with open("/dev/full", "w") as full:
            full.write("a checkpoint")
    if how == "no input":
        context.input("fleet")
    if how == "wait":
        child = subprocess.Popen(["sleep", "600"])
        context.channel.note(f"child {child.pid}")
        signal.pause()
    if how == "defer":
        with context.termination.deferred():
            context.channel.note("busy")
            while not context.termination.asked:
                time.sleep(0.01)
            context.channel.note("kept")
    (context.output("thing") / "thing.txt").write_text("made")


if __name__ == "__main__":
    main(misbehave)
