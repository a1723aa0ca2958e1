"""What the commands set going. Whoever calls them in this process may set another work for them, as tests do."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fleetune.contracts.run_config import RunConfig
    from fleetune.solving import Kind
    from fleetune.store import RunRecord
    from flows.chaos.rehearsal import ChaosReport, ChaosRequest
    from flows.context import RunContext, StageSelection
    from flows.runner import Runner


class Work:
    """Runs, rehearsals and solvers; each imports what it needs when it is asked for, so that help appears at once."""

    def run_with(
        self, context: RunContext, config: RunConfig, selection: StageSelection, dry_run: bool = False
    ) -> RunRecord:
        """Run the pipeline, as `flows.api.run_with`."""
        from flows import api

        return api.run_with(context, config, selection, dry_run)

    def run_made(self, context: RunContext, make: Callable[[RunContext], Runner]) -> RunRecord:
        """Run what `make` makes of the context, as `flows.api.run_made`."""
        from flows import api

        return api.run_made(context, make)

    def rehearse(self, context: RunContext, config: RunConfig, request: ChaosRequest) -> ChaosReport:
        """Train with faults and without, as `flows.chaos.rehearsal.rehearse`."""
        from flows.chaos.rehearsal import rehearse

        return rehearse(context, config, request, self.run_with)

    def solvers(self) -> Mapping[str, Kind]:
        """The kinds of problems with their solvers, as `fleetune.solving.kinds`."""
        from fleetune import solving

        return solving.kinds()


WORK = ContextVar("WORK", default=Work())  # noqa: B039 (it has no state)
