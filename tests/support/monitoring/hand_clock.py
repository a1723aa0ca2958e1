"""A clock that tests move."""


class HandClock:
    """Returns the time in seconds when called; `sleep` advances it."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Advance the time."""
        self.now_s += seconds
