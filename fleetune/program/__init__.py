"""A plan as a program: the steps of every device in one round, in order.

`lower` works out who sends what to whom, once for everyone: workers execute the steps, the clock times them, `checks`
proves that every receive has its send, and reports print them. Steps are data that print and parse back.
"""

from fleetune.program.lower import lower, program_of
from fleetune.program.seats import SampleTransfer, Seat, sample_transfers, seats_of
from fleetune.program.steps import DeviceProgram, Program, Step, parse_program, parse_step

__all__ = [
    "DeviceProgram",
    "Program",
    "SampleTransfer",
    "Seat",
    "Step",
    "lower",
    "parse_program",
    "parse_step",
    "program_of",
    "sample_transfers",
    "seats_of",
]
