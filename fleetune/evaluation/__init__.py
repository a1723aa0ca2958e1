"""Evaluation of a run: scores on held-out data before and after training, and the forecast beside the measurement.

The score before is that of the initial weights; the score after is that of the checkpoint folder, read by transformers
and PEFT alone, so every evaluation also shows that the result loads without this project. `report.html` is for people,
`summary.json` for programs. Scoring inside the workers was rejected: it would score the weights in memory, not those on
disk.
"""

from fleetune.evaluation.evaluate import DeviceSummary, EvaluationTask, Summary, evaluate, measured_forecast

__all__ = ["DeviceSummary", "EvaluationTask", "Summary", "evaluate", "measured_forecast"]
