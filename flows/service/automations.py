"""Automations that every service has: TryAgain is retried after a pause that grows, and failures are told.

The notification needs no account: it is a line in `failures.jsonl` of the store for each run that failed. Prefect's
server writes it when an automation says so. The block has no settings, so that nobody can have the server write
elsewhere.
"""

import datetime
import json
import os
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.automations import (
    AutomationCore,
    ChangeFlowRunState,
    EventTrigger,
    Posture,
    ResourceSpecification,
    SendNotification,
)
from prefect.blocks.abstract import NotificationBlock
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import StateType
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
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o644)  # others may link there
        try:
            os.write(file, f"{line}\n".encode())  # one call, so that lines of two runs do not mix
        finally:
            os.close(file)


OWN = "fleetune: "
"""Names of our automations begin like this; others are those of people."""
PAUSES_S = (30.0, 180.0)
"""Shortest pause before a run that ended in TryAgain is started again, for each time; Prefect looks again only after a
pause, so that it may last twice as long."""
RETRIES = len(PAUSES_S)
STARTED = ("AwaitingRetry", "Scheduled", "Late", "Pending", "Running")
"""States by which somebody else has started a run again."""
MOST_STARTS = 100
FAILURES = "failures"
"""Name of the blocks that are told of failures: our log, and any notification block that the user saves so."""
OF_A_DEPLOYMENT = ResourceSpecification({"prefect.resource.role": "tag", "prefect.resource.id": "prefect.tag.fleetune"})
SUBJECT = "{{ flow_run.name }}"
BODY = "{{ event.resource['prefect.state-name'] }}: {{ event.resource['prefect.state-message'] }}"


def automations(blocks: list[UUID]) -> list[AutomationCore]:
    """The automations; `blocks` are the ids of the blocks that are told of failures."""
    tell: list[Any] = [SendNotification(block_document_id=block, subject=SUBJECT, body=BODY) for block in blocks]
    given_up = [str(starts) for starts in range(RETRIES + 1, MOST_STARTS)]
    return [
        *(_retry(starts, pause_s) for starts, pause_s in enumerate(PAUSES_S, start=1)),
        AutomationCore(
            name=f"{OWN}tell of failures",
            description=f"Every notification block that is called {FAILURES} is told of a run that failed.",
            trigger=_on("Failed", "Refused", "Infeasible", "Crashed", "TimedOut"),
            actions=tell,
        ),
        AutomationCore(
            name=f"{OWN}tell of the last retry",
            description=f"Every notification block that is called {FAILURES} is told when retries did not help.",
            trigger=_on("TryAgain", **{"prefect.run-count": given_up}),
            actions=tell,
        ),
    ]


def update_automations(client: SyncPrefectClient) -> None:
    """Create the automations, or update those that are there; their switches stay as they are. Others of ours, of an
    earlier release, are deleted."""
    FailureLog().save(FAILURES, overwrite=True)
    wanted = {one.name: one for one in automations(_blocks(client))}
    there = {found.name: found for found in client.read_automations() if found.name.startswith(OWN)}
    for name, found in there.items():
        if name not in wanted:
            client.delete_automation(found.id)
        elif _plain(found) != _plain(wanted[name]):
            client.update_automation(found.id, wanted[name].model_copy(update={"enabled": found.enabled}))
    for name in wanted.keys() - there.keys():
        client.create_automation(wanted[name])


def _retry(starts: int, pause_s: float) -> AutomationCore:
    """The automation that starts a run again which was started `starts` times and has ended in TryAgain since."""
    trigger = _on("TryAgain", **{"prefect.run-count": str(starts)})
    waits = {
        "posture": Posture.Proactive,
        "after": trigger.expect,
        "expect": {f"prefect.flow-run.{state}" for state in STARTED},
        "within": datetime.timedelta(seconds=pause_s),
    }
    return AutomationCore(
        name=f"{OWN}retry {starts}",
        description=f"A run that ended in TryAgain is started again after {pause_s:g} s, {RETRIES} times at most.",
        trigger=trigger.model_copy(update=waits),
        actions=[
            ChangeFlowRunState(
                name="AwaitingRetry", state=StateType.SCHEDULED, message="started again after TryAgain", force=False
            )
        ],
    )


def _blocks(client: SyncPrefectClient) -> list[UUID]:
    """Ids of the notification blocks that are called FAILURES."""
    found = client.read_block_documents(include_secrets=False)
    return sorted(
        block.id
        for block in found
        if block.name == FAILURES and block.block_schema and "notify" in block.block_schema.capabilities
    )


def _on(*states: str, **labels: str | list[str]) -> EventTrigger:
    """A trigger of each run of our deployments that enters one of these states and has these labels."""
    return EventTrigger(
        expect={f"prefect.flow-run.{state}" for state in states},
        match=ResourceSpecification({"prefect.resource.id": "prefect.flow-run.*", **labels}),
        match_related=OF_A_DEPLOYMENT,
        for_each={"prefect.resource.id"},
    )


def _plain(automation: AutomationCore) -> object:
    """What an automation does, comparable, without ids and its switch."""
    plain = automation.model_dump(mode="json", include={"description", "trigger", "actions"})
    plain["trigger"] = {key: sorted(v) if isinstance(v, list) else v for key, v in plain["trigger"].items()}
    plain["trigger"].pop("id", None)
    return plain
