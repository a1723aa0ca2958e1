"""What training was good for: scores on held-out data before and after, and the forecast beside what was measured.

The score before is that of the weights training started from; the score after is that of the checkpoint folder, read
by transformers and PEFT alone, so every evaluation also proves that the result loads without this project.
`report.html` tells it to people, `summary.json` to programs. Scoring inside the workers was set aside: it would judge
the weights in memory, not those that are kept.

May import: contracts, errors, data, drawing, models; torch, transformers, peft, scikit-learn.
"""

from fleetune.evaluation.evaluate import DeviceSummary, EvaluationTask, Summary, evaluate

__all__ = ["DeviceSummary", "EvaluationTask", "Summary", "evaluate"]
