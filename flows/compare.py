"""The Prefect flow `compare`: several strategies on one fleet and one profile.

(No postponed annotations: flows that are served could not read their parameters.)
"""

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from flows.form import AS_GIVEN, Change, Data, Fleet, Model, Rounds, StrategyName, TargetLoss
from flows.store_root import store_root


@flow(name="compare", persist_result=False, log_prints=False)
def compare(
    base: str = "demo",
    strategies: list[StrategyName] = ["asteroid", "dp", "single"],  # noqa: B006  (a form's default; never changed)
    train: bool = False,
    fleet: Fleet = AS_GIVEN,
    model: Model = AS_GIVEN,
    data: Data = AS_GIVEN,
    rounds: Rounds = 0,
    target_loss: TargetLoss = 0.0,
    changes: list[Change] = [],  # noqa: B006
) -> State[Any]:
    """Compare strategies on one fleet: which method for my devices?

    Args:
        base: A run file (demo), or a past run's id or latest.
        strategies: Each is planned on the same measured fleet.
        train: Trains every strategy that can be trained.
        fleet: The devices.
        model: The model that is fine-tuned.
        data: What it is trained and tested on.
        rounds: Optimizer steps; 0 as in the run file.
        target_loss: Seconds until this loss; 0: the lowest reached.
        changes: KEY=VALUE: training.batch_samples=16.
    """
    fields: dict[str, Any] = {**locals(), "strategies": tuple(strategies), "changes": tuple(changes)}
    from flows.comparison.comparer import CompareRequest  # brings planners and compiler, which no registration needs
    from flows.comparison.requested import run_comparison

    return run_comparison(CompareRequest(**fields), store_root())
