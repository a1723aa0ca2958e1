"""What held-out samples have told while a model trained, in sentences."""

from fleetune.contracts.metrics import TrainingMetrics
from fleetune.contracts.tasks import LOSS
from fleetune.formatting import number


def scores_text(training: TrainingMetrics) -> list[str]:
    """Sentences about the scores between rounds, the state that was taken, and an early end; none without scores."""
    if not training.scores:
        return []
    losses = [each.values[LOSS] for each in training.scores]
    lowest = training.scores[losses.index(min(losses))]
    times = f"{len(losses)} time{'' if len(losses) == 1 else 's'}"
    said = [
        f"Held-out samples were scored {times}: their loss was {number(losses[0])} at first, {number(losses[-1])} at "
        f"last, and lowest, {number(min(losses))}, after round {lowest.rounds}."
    ]
    if training.result_rounds is not None:
        said.append(f"The result is the state after round {training.result_rounds}.")
    if training.ended_early:
        said.append(f"The training {training.ended_early}.")
    return said
