"""A launcher whose jobs a test can reach."""

from fleetune.launching import Command, Job, ProcessLauncher


class Recording:
    """A launcher that records its jobs, so that a test can kill them."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.commands: list[Command] = []

    def start(self, command: Command) -> Job:
        """Start a command."""
        self.commands.append(command)
        job = ProcessLauncher().start(command)
        self.jobs.append(job)
        return job
