"""Signals that arrive while pydantic works."""

import signal
import subprocess
import sys

import pytest

SCRIPT = """
import os, signal, sys, time
from typing import Any
from pydantic import BaseModel, model_serializer
from flows.interrupts import defer_interrupts

number = int(sys.argv[1])
signal.signal(number, signal.default_int_handler)

class Request(BaseModel):
    @model_serializer(mode="wrap")
    def ask(self, handler: Any) -> Any:
        os.kill(os.getpid(), number)
        print("serialized")
        return handler(self)

if sys.argv[2] == "deferred":
    defer_interrupts()
try:
    try:
        Request().model_dump_json()
        time.sleep(60)
    except Exception as error:
        print(type(error).__name__)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("handlers", "lines"),
    [("deferred", ["serialized", "interrupted"]), ("as they are", ["PydanticSerializationError"])],
)
def test_an_interrupt_is_not_lost_in_pydantic(number: signal.Signals, handlers: str, lines: list[str]) -> None:
    """A signal in a callback of pydantic interrupts right after it; as it is, pydantic makes a common error of it.

    Bug: a Ctrl-C just after a stage had begun was taken for a failed request, and the command exited with 0.
    """
    command = [sys.executable, "-c", SCRIPT, str(int(number)), handlers]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.splitlines() == lines, run.stderr


FLOW = """
import os, signal, sys, time
from typing import Any
from prefect.exceptions import TerminationSignal
from prefect.utilities.engine import can_ack_control_intent, capture_sigterm
from pydantic import BaseModel, model_serializer
from flows.interrupts import defer_interrupts_of_flows

class Request(BaseModel):
    @model_serializer(mode="wrap")
    def ask(self, handler: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        print("serialized")
        return handler(self)

signal.signal(signal.SIGTERM, lambda *_: print("told whoever was told before"))
if sys.argv[1] == "before":
    defer_interrupts_of_flows()
try:
    with capture_sigterm():
        defer_interrupts_of_flows()
        print(can_ack_control_intent())
        with capture_sigterm():
            defer_interrupts_of_flows()
            print(can_ack_control_intent())
        print(can_ack_control_intent())
        Request().model_dump_json()
        time.sleep(60)
except TerminationSignal:
    print("terminated")
"""


SECOND = """
import os, signal, time
from prefect.exceptions import TerminationSignal
from prefect.utilities.engine import capture_sigterm
from flows.interrupts import defer_interrupts_of_flows

signal.signal(signal.SIGTERM, lambda *_: print("told whoever was told before"))
defer_interrupts_of_flows(once=True)
try:
    with capture_sigterm():
        defer_interrupts_of_flows()
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        finally:
            for _ in range(3):
                os.kill(os.getpid(), signal.SIGTERM)
            print("in order")
except TerminationSignal:
    print("terminated")
"""


def test_a_second_signal_does_not_interrupt_the_end_of_a_flow_run() -> None:
    """The first SIGTERM ends a flow run, and what ends in order because of it is not interrupted by others.

    Bug: a killed worker's run was told once for each thread of the worker, and died before training had saved.
    """
    run = subprocess.run([sys.executable, "-c", SECOND], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.splitlines() == ["in order", "told whoever was told before", "terminated"], run.stderr


@pytest.mark.parametrize("called", ["before", "within"])
def test_a_flow_run_knows_of_its_cancellation(called: str) -> None:
    """In a flow run and a run within it, SIGTERM is deferred, and Prefect still acknowledges a cancellation.

    Bug: the worker of a comparison was not told that its cancellation had been heard, and the comparison read Crashed.
    """
    run = subprocess.run([sys.executable, "-c", FLOW, called], capture_output=True, text=True, timeout=60, check=True)
    told = ["told whoever was told before", "terminated"]
    assert run.stdout.splitlines() == ["True", "True", "True", "serialized", *told], run.stderr
