"""summary.json: a run in one table."""

from fleetune.contracts.metrics import DeviceAmount, EvaluationMetrics
from fleetune.contracts.record import record
from fleetune.evaluation.checkpoint import result_folder
from fleetune.evaluation.task import EvaluationTask


@record
class DeviceSummary:
    """What one device did in a round, and what it took."""

    device: str
    units: int
    """How many units of the model it ran, over all lanes; 0 where the plan left it out."""
    samples: int
    """Of every micro-batch; the largest share where it has several."""
    busy_s: float
    forecast_busy_s: float
    peak_memory_bytes: float
    forecast_memory_bytes: float
    memory_bytes: int
    """Its limit."""


@record
class Summary:
    """The run's numbers that a reader asks for first."""

    run: str
    model: str
    task: str
    strategy: str
    result: str
    """`model` or `adapter`: the folder of the checkpoint that holds the result."""
    rounds: int
    first_loss: float | None
    last_loss: float | None
    """Of training; None where no round was run."""
    train_wall_s: float
    evaluation: EvaluationMetrics
    devices: tuple[DeviceSummary, ...]


def summarise(task: EvaluationTask, metrics: EvaluationMetrics) -> Summary:
    """The summary of an evaluated run; every device of the fleet has a row."""
    rounds = task.training.rounds
    return Summary(
        run=task.run,
        model=task.profile.model,
        task=task.model.task,
        strategy=task.plan.plan.strategy,
        result=result_folder(task.checkpoint_folder).name,
        rounds=len(rounds),  # those of earlier attempts included
        first_loss=rounds[0].loss if rounds else None,
        last_loss=rounds[-1].loss if rounds else None,
        train_wall_s=task.training.wall_s,
        evaluation=metrics,
        devices=tuple(_device(task, device.name, device.memory_bytes) for device in task.fleet.devices),
    )


def _device(task: EvaluationTask, name: str, memory_bytes: int) -> DeviceSummary:
    own = [
        (segment, share)
        for lane in task.plan.plan.lanes
        for segment in lane.segments
        for share in segment.shares
        if share.device == name
    ]
    return DeviceSummary(
        device=name,
        units=len({unit for segment, _ in own for unit in segment.units}),
        samples=max((share.samples for _, share in own), default=0),
        busy_s=_amount(task.training.busy_s, name),
        forecast_busy_s=_amount(task.forecast.busy_s, name),
        peak_memory_bytes=_amount(task.training.peak_memory_bytes, name),
        forecast_memory_bytes=_amount(task.forecast.memory_bytes, name),
        memory_bytes=memory_bytes,
    )


def _amount(amounts: tuple[DeviceAmount, ...], device: str) -> float:
    return next((one.amount for one in amounts if one.device == device), 0.0)
