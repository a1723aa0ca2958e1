"""A notification that needs no account: a line in `failures.jsonl` of the store for each run that failed.

Prefect's server writes it when an automation says so. The block has no settings, so that nobody can have the server
write elsewhere.
"""

import datetime
import json
import os
from pathlib import Path

from prefect.blocks.abstract import NotificationBlock
from prefect.settings import PREFECT_HOME

FILE = "failures.jsonl"


class FailureLog(NotificationBlock):
    """Appends a line of JSON to `failures.jsonl` in the store: time, run and reason."""

    _block_type_name = "Fleetune failure log"
    _block_type_slug = "fleetune-failure-log"

    async def notify(self, body: str, subject: str | None = None) -> None:
        """Append one line; `subject` is the run's name and `body` the reason."""
        moment = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        line = json.dumps({"time": moment, "run": subject or "", "reason": body}, ensure_ascii=False)
        path = Path(str(PREFECT_HOME.value())).parent / FILE
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, f"{line}\n".encode())  # one call, so that lines of two runs do not mix
        finally:
            os.close(file)
