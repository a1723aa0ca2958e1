"""The coordinator's wait ends as soon as something has happened to a device, not at its next look."""

import threading

from fleetune.links.endpoint import Endpoint
from fleetune.training.device_watch import DeviceWatch
from tests.support.links.ends import KEYS, LISTED, PATIENCE_S, two_ends


class EndingJob:
    """A job that runs until it is told to end."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def wait(self, timeout_s: float | None = None) -> int | None:
        return 0 if self.ended.wait(timeout_s) else None


def test_the_end_of_a_job_ends_the_wait() -> None:
    """Bug: a killed process was found at the next look, up to 0.2 s later."""
    with Endpoint("ann", KEYS["ann"], LISTED, run="run-1", note=lambda _: None) as ann:
        job = EndingJob()
        DeviceWatch(ann).watch_end("bob", job)  # type: ignore[arg-type]
        assert ann.receive(0) is None
        threading.Timer(0.05, job.ended.set).start()
        assert ann.receive(PATIENCE_S) is None and job.ended.is_set(), "long before its time was over"


def test_a_device_that_lives_answers_and_one_that_is_gone_does_not() -> None:
    """The answer ends the wait too."""
    with two_ends() as ends:
        watch = DeviceWatch(ends.ann)
        watch.ask("bob", ends.bob.address, gone=lambda: False)
        assert ends.ann.receive(PATIENCE_S) is None
        assert list(watch.answers()) == ["bob"]
        assert list(watch.answers()) == []
        watch.ask("eve", "tcp://127.0.0.1:1", gone=lambda: True)
        assert ends.ann.receive(0.2) is None and list(watch.answers()) == []
        watch.close()
