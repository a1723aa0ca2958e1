"""Times of optimizer steps by unit, and of the wait of a thread that a message wakes."""

import threading

import torch

from fleetune.profiling.between_passes import MOST_ELEMENTS, MessageWait, update_times
from fleetune.profiling.timing import TimingSettings

SETTINGS = TimingSettings(batch_sizes=(1,), cores=1.0)
"""By processor time, which a busy machine changes little."""


def test_equal_units_take_equal_time_and_frozen_ones_none() -> None:
    """A unit without trained tensors takes no time; units with the same tensors are measured once."""
    found = update_times([(), (1000, 10), (1000, 10), (300_000,)], "adamw", 0.0, torch.ones(1), SETTINGS)
    assert found[0] == 0.0
    assert found[1] == found[2] > 0
    assert found[3] > found[1]


def test_a_tensor_beyond_the_bound_takes_time_in_proportion_and_no_memory() -> None:
    """An embedding of 4 GB is timed by a part of it; the machine that runs this need not hold it and its moments."""
    (once, often) = update_times([(MOST_ELEMENTS + 1,), (500 * MOST_ELEMENTS,)], "sgd", 0.9, torch.ones(1), SETTINGS)
    assert often > 50 * once > 0


def test_steps_are_taken_by_the_optimizer_of_the_training() -> None:
    """SGD without momentum has less to do than AdamW with its two moments."""
    sizes = [(MOST_ELEMENTS,)]
    times = [
        [update_times(sizes, name, 0.0, torch.ones(1), SETTINGS)[0] for name in ("sgd", "adamw")] for _ in range(3)
    ]
    light, heavy = map(min, zip(*times, strict=True))
    assert light < heavy


def test_a_wait_for_a_processor_is_what_exceeds_the_least_one() -> None:
    """Threads that run 2, 5 and 2 s after they were woken wait 1 s on average: 2 s is what waking takes at best. The
    measuring thread ends with the measurement."""
    moments_s = iter((0.0, 2.0, 10.0, 15.0, 20.0, 22.0))
    with MessageWait(clock_s=lambda: next(moments_s)) as wait:
        assert wait.mean_s == 0
        for _ in range(3):
            wait.measure()
    assert wait.mean_s == 1.0
    assert not any(thread.name == "message-wait" for thread in threading.enumerate())
