"""Asks the model of a run about texts, files and images."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from fleetune.contracts.input_spec import InputSpec
from fleetune.contracts.run_config import DataRequest
from fleetune.data.examples import Example
from fleetune.data.prepared_data import PreparedData
from fleetune.data.unlabelled import asked_images, asked_rows, asked_texts, is_image
from fleetune.errors import Refused
from flows.hand_over.trained_run import TrainedRun, tell

if TYPE_CHECKING:
    from fleetune.evaluation.prediction import Prediction, Predictor

SHOWN = 80
"""Most characters of a message in a note."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a model is asked about."""

    texts: Sequence[str] = ()
    """Texts, or paths of images."""
    files: Sequence[Path] = ()
    """Tables in the columns of the run, lines of text, images or folders of images."""
    new_tokens: int = 64


def predict(found: TrainedRun, asked: Asked) -> "Iterator[Prediction]":
    """Yield what the model of the run says of each input. Refused: there is none, or one that it cannot take."""
    from fleetune.evaluation.prediction import Predictor
    from fleetune.evaluation.trained_model import load_result

    if not asked.texts and not asked.files:
        raise Refused("nothing to ask; give texts (or images), or --file")
    if asked.new_tokens < 1:
        raise Refused(f"--new-tokens {asked.new_tokens}: give a number of at least 1")
    data = PreparedData(found.data)
    every = _inputs(asked, data, found.run.config.data)
    first = next(every, None)  # a wrong input is said before a model is loaded
    if first is None:
        raise Refused(f"{asked.files[0]}: nothing to ask in it; give rows, lines or images")
    systems = data.info.systems
    if systems is None and data.info.chats:
        tell(
            "texts are asked without a system's message; whether training had one was not written down then, and "
            f"fleetune rerun {found.run.id} does"
        )
    elif systems and len(systems) == 1:
        tell(f"texts are asked after the {systems[0]['role']}'s message of training, {systems[0]['content'][:SHOWN]!r}")
    elif systems:
        tell("texts are asked without a system's message, of which training had several; give rows with messages")
    model = load_result(found.checkpoint, found.model, found.run.config.model, tell)
    predictor = Predictor(model=model, data=data, new_tokens=asked.new_tokens)
    return _told(predictor, chain([first], every))


def _told(predictor: "Predictor", every: Iterator[Example]) -> "Iterator[Prediction]":
    """Yield predictions, and tell at last what is odd about them."""
    unfinished = 0
    for one in predictor.predictions(every):
        unfinished += one.unfinished
        yield one
    if unfinished:
        tell(f"{unfinished} went on when --new-tokens {predictor.new_tokens}, or what the model takes, was full")
    if spaced := predictor.spaced:
        tell(
            f"{len(spaced)} end in white space, which training has within the token of the next word; leave it out; "
            f"the first is {spaced[0]}"
        )
    if templated := predictor.templated:
        tell(
            f"{len(templated)} written by the tokenizer's chat template, which the model was not trained with; give "
            f"plain texts or prompts, as it was trained on; the first is {templated[0]}"
        )
    if cut := predictor.cut:
        tell(f"{len(cut)} longer than the texts of training, and cut; the first is {cut[0]}")


def _inputs(asked: Asked, data: PreparedData, request: DataRequest) -> Iterator[Example]:
    spec = InputSpec(task=data.task)
    systems = data.info.systems or ()
    system = systems[0] if len(systems) == 1 else {}
    if spec.is_text:
        yield from asked_texts(asked.texts, data.info.chats, system)
    else:
        yield from asked_images([Path(text) for text in asked.texts])
    for file in asked.files:
        if not spec.is_text and (file.is_dir() or is_image(file)):
            yield from asked_images([file])
        else:
            yield from asked_rows(file, request, spec, data.info.chats, system)
