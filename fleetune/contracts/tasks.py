"""Tasks: what a model reads, what it says, and the scores of it."""

LOSS = "loss"
CLASS_SCORES = (LOSS, "accuracy", "macro_f1")
LABEL_SCORES = (LOSS, "accuracy", "micro_f1", "macro_f1")
NUMBER_SCORES = (LOSS, "mae", "r2")

SCORES = {
    "sequence-classification": CLASS_SCORES,
    "sequence-multi-label-classification": LABEL_SCORES,
    "sequence-regression": NUMBER_SCORES,
    "image-classification": CLASS_SCORES,
    "image-multi-label-classification": LABEL_SCORES,
    "image-regression": NUMBER_SCORES,
    "causal-lm": (LOSS, "perplexity"),
    "seq2seq": (LOSS, "perplexity"),
}
"""task -> scores that evaluation gives"""
TASKS = tuple(SCORES)
TEXT_TASKS = tuple(task for task in TASKS if not task.startswith("image-"))


SEQ2SEQ = "seq2seq"
"""Encoder and decoder: a text is read, and another one written."""


def predicts_tokens(task: str) -> bool:
    """Return whether a model says of each token what it is."""
    return task in ("causal-lm", SEQ2SEQ)


def predicts_number(task: str) -> bool:
    """Return whether a model says a number of each sample."""
    return task.endswith("-regression")


def predicts_labels(task: str) -> bool:
    """Return whether a model says of each label whether a sample has it: none, one or several."""
    return task.endswith("-multi-label-classification")


def head_of(task: str) -> str:
    """Return the task by which transformers names the class of the model: heads for numbers are those for classes."""
    if predicts_number(task) or predicts_labels(task):
        return "sequence-classification" if task in TEXT_TASKS else "image-classification"
    return task


def problem_type(task: str) -> str:
    """Return transformers' name of what a head says."""
    if predicts_number(task):
        return "regression"
    return "multi_label_classification" if predicts_labels(task) else "single_label_classification"
