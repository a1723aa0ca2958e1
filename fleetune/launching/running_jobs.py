"""Jobs of several devices that end together: the first failure stops the others."""

import threading

from fleetune.launching.job import Job


class RunningJobs:
    """The running jobs; after `stop`, one that starts late is stopped too."""

    def __init__(self) -> None:
        self._jobs: list[Job] = []
        self._stopped = False
        self._lock = threading.Lock()

    def add(self, job: Job) -> None:
        """Register a job that was just started."""
        with self._lock:
            self._jobs.append(job)
            late = self._stopped
        if late:
            job.stop()

    def stop(self) -> None:
        """Stop all jobs."""
        with self._lock:
            self._stopped = True
        for job in self._jobs:
            job.stop()
