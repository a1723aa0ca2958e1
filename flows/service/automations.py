"""Automations that every service has: a run that was not started reads Skipped, TryAgain is retried, failures are told.

They are found by their names. One that was switched off in the UI stays off.
"""

from typing import Any
from uuid import UUID

from prefect.automations import (
    AutomationCore,
    ChangeFlowRunState,
    EventTrigger,
    ResourceSpecification,
    SendNotification,
)
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateName
from prefect.client.schemas.objects import State, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.states import Cancelled

from flows.service.failure_log import FailureLog

RETRIES = 2
"""How often a run that ended in TryAgain is started again."""
MOST_STARTS = 100
PAGE = 100
LIMIT_REACHED = "Deployment concurrency limit reached."
"""What Prefect says of a run that it did not start beside another."""
SKIPPED = "another run was in progress, and one runs at a time; next: fleetune runs"
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
        AutomationCore(
            name="fleetune: skipped",
            description="A run that was not started because another one ran reads Skipped.",
            trigger=_on("Cancelled", **{"prefect.state-message": LIMIT_REACHED}),
            actions=[
                ChangeFlowRunState(
                    name="Skipped",
                    state=StateType.CANCELLED,
                    message=SKIPPED,
                    force=True,
                )
            ],
        ),
        AutomationCore(
            name="fleetune: retry",
            description=f"A run that ended in TryAgain is started again, {RETRIES} times at most.",
            trigger=_on("TryAgain", **{"prefect.run-count": [str(starts) for starts in range(1, RETRIES + 1)]}),
            actions=[
                ChangeFlowRunState(
                    name="AwaitingRetry", state=StateType.SCHEDULED, message="started again after TryAgain", force=False
                )
            ],
        ),
        AutomationCore(
            name="fleetune: tell of failures",
            description=f"Every notification block that is called {FAILURES} is told of a run that failed.",
            trigger=_on("Failed", "Refused", "Infeasible", "Crashed", "TimedOut"),
            actions=tell,
        ),
        AutomationCore(
            name="fleetune: tell of the last retry",
            description=f"Every notification block that is called {FAILURES} is told when retries did not help.",
            trigger=_on("TryAgain", **{"prefect.run-count": given_up}),
            actions=tell,
        ),
    ]


def update_automations(client: SyncPrefectClient) -> None:
    """Create the automations, or update those that are there; their switches stay as they are."""
    FailureLog().save(FAILURES, overwrite=True)
    for wanted in automations(_blocks(client)):
        found = client.read_automations_by_name(wanted.name)
        if not found:
            client.create_automation(wanted)
        elif _plain(found[0]) != _plain(wanted):
            client.update_automation(found[0].id, wanted.model_copy(update={"enabled": found[0].enabled}))


def name_skipped(client: SyncPrefectClient) -> None:
    """Name the newest runs Skipped that Prefect cancelled because another one ran."""
    cancelled = FlowRunFilter(state=FlowRunFilterState(name=FlowRunFilterStateName(any_=["Cancelled"])))
    newest = client.read_flow_runs(flow_run_filter=cancelled, limit=PAGE, sort=FlowRunSort.EXPECTED_START_TIME_DESC)
    skipped: State[Any] = Cancelled(name="Skipped", message=SKIPPED)
    for run in newest:
        if run.state is not None and run.state.message == LIMIT_REACHED:
            client.set_flow_run_state(run.id, skipped, force=True)


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
