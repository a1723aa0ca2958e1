"""The trials of all types of model, each with a time limit and an outcome whatever happens."""

import json
import logging
import signal
import warnings
from dataclasses import asdict, dataclass
from typing import Any

import torch
import transformers
from transformers.models.auto import modeling_auto

from benchmarks.families.small_configs import small_config
from benchmarks.families.trial import UNTRIED, Outcome, try_family

NAMES: dict[str, tuple[str, ...]] = {
    "causal-lm": tuple(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
    "seq2seq": tuple(modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES),
    "sequence-classification": tuple(modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES),
    "image-classification": tuple(
        {
            **modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
            **modeling_auto.MODEL_FOR_IMAGE_MAPPING_NAMES,
        }
    ),
}
"""Task -> types of model that transformers has a class for, or of images at least a backbone."""
TASKS = tuple(NAMES)
TIME_LIMIT_S = 120


@dataclass(frozen=True)
class Result:
    """The outcome of one type of model at one task."""

    task: str
    model_type: str
    outcome: Outcome

    def to_json(self) -> str:
        """Return the result as one line."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(line: str) -> "Result":
        """Return the result that `to_json` wrote."""
        plain = json.loads(line)
        return Result(plain["task"], plain["model_type"], Outcome(**plain["outcome"]))


def run_trial(task: str, model_type: str) -> Result:
    """Try one type of model; any error becomes an outcome."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    transformers.utils.logging.set_verbosity_error()
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(TIME_LIMIT_S)
    try:
        outcome = try_family(task, small_config(model_type))
    except _TooLong:
        outcome = Outcome(UNTRIED, why=f"its small configuration takes more than {TIME_LIMIT_S} s")
    except Exception as error:  # the code of a model, or of its configuration, may raise anything
        outcome = Outcome(UNTRIED, why=f"{type(error).__name__}: {' '.join(str(error).split())[:160]}")
    finally:
        signal.alarm(0)
    return Result(task, model_type, outcome)


class _TooLong(BaseException):
    """Not an Exception, which the code of a model might catch."""


def _too_long(*_: Any) -> None:
    raise _TooLong
