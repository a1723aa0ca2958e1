"""What a model asks of its data: tokenizer, image processor, sizes, usable positions and the classes of its head."""

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from fleetune.contracts.input_spec import InputSpec
from fleetune.contracts.run_config import ModelRequest
from fleetune.contracts.tasks import SEQ2SEQ, head_of, predicts_number
from fleetune.errors import Refused, first_line
from fleetune.models.earlier_run import is_continued
from fleetune.models.model_class import IMAGE
from fleetune.models.skeleton import untied_model
from fleetune.models.source import ANY_SHAPE, TOKENIZERS, adapter_folder, configuration, source_folder, text_part
from fleetune.models.start_adapter import classes_of

POSITIONS = ("position_embeddings", "embed_positions")
"""Last names of the tables of learned positions in all families of transformers."""
UNRECORDED = ("m2m_100", "nllb-moe")
"""Types in wide use that cannot be recorded, which would else be known once the data are prepared."""
USUAL_SIDE = 224
"""Pixels that images have for models that name no size."""
LIMITS = ("max_position_embeddings", "n_positions", "max_seq_len")
"""Settings that say how many positions a model has, in most families, in old ones and in MPT."""


def input_spec(request: ModelRequest) -> InputSpec:
    """Return the requirements of the model on its data."""
    config = configuration(request)
    if config.model_type in UNRECORDED:
        raise Refused(f"model: {config.model_type} (NLLB, M2M100) has no graph and cannot be cut; take mBART-50")
    folder = source_folder(request)
    has_tokenizer = folder is not None and any((folder / name).exists() for name in TOKENIZERS)
    has_processor = folder is not None and (folder / "preprocessor_config.json").exists()
    processed = has_processor and "image_size" not in (request.config or {})  # the processor knows
    size = None if processed else _image_size(config)
    text = text_part(config)
    any_shape = config.vision_config if config.model_type == ANY_SHAPE else None
    continued = is_continued(request)
    if head_of(request.task) == "image-classification" and size is None and not has_processor and not any_shape:
        size = 32  # convolutional networks take any size; this is the smallest that every family here can halve
    return InputSpec(
        task=request.task,
        tokenizer=folder if has_tokenizer else None,
        pretrained=folder is not None,
        vocab_size=getattr(text, "vocab_size", None),
        decoder_start_token_id=getattr(config, "decoder_start_token_id", None) if request.task == SEQ2SEQ else None,
        max_positions=usable_positions(config, request),
        image_size=size,
        patches=(any_shape.patch_size, any_shape.num_patches) if any_shape else None,
        channels=int(getattr(any_shape or config, "num_channels", 3)),
        labels=_class_names(config, request),
        numbered="id2label" in (request.config or {}) or _adapter_names_classes(request) or continued,
        continued=continued,
        image_processor=folder if has_processor else None,
        precision=request.precision,
    )


def _adapter_names_classes(request: ModelRequest) -> bool:
    adapter = adapter_folder(request)
    return adapter is not None and bool(classes_of(adapter))


def _class_names(config: PretrainedConfig, request: ModelRequest) -> tuple[str, ...]:
    """Return the class names of an existing head, whether the request, the adapter to start from or the base's folder
    names them; () for a new head."""
    heads = {"sequence-classification": "ForSequenceClassification", "image-classification": "ForImageClassification"}
    head = None if predicts_number(request.task) else heads.get(head_of(request.task))
    made_for = config.architectures or ()
    finished = head is not None and any(head in name for name in made_for)  # some have "WithTeacher" behind it
    named = head is not None and "id2label" in (request.config or {})
    adapter = adapter_folder(request)
    if adapter is not None and head is not None and not named and (told := classes_of(adapter)):
        return told
    if not finished and not named:
        return ()
    return tuple(str(name) for _, name in sorted((int(number), name) for number, name in config.id2label.items()))


def _image_size(config: PretrainedConfig) -> int | None:
    """Return the side of an image in pixels, which some configurations give as [height, width]."""
    size = getattr(config, "image_size", None)
    sides = tuple(size) if isinstance(size, list | tuple) else (size,)
    if len(set(sides)) != 1:
        raise Refused(f"model: config.image_size is {list(sides)}, but images are made square; give both the same size")
    return int(sides[0]) if sides[0] is not None else None


def check_image_size(request: ModelRequest, side: int | None) -> None:
    """Refuse a side of images that the model cannot read, by asking it without weights, before any image is decoded."""
    if side is None or head_of(request.task) != IMAGE:
        return
    config = configuration(request)
    part = getattr(config, "vision_config", config)
    if config.model_type == ANY_SHAPE:
        own = int(part.patch_size)
        fault = "an image has one patch at least" if side < own else ""
    else:
        size, model = getattr(part, "image_size", None), untied_model(config, request).eval()
        own = size if isinstance(size, int) else USUAL_SIDE
        fault = _fault(model, side) if not _fault(model, own) else ""
    if fault:
        kind = type(config).__name__.removesuffix("Config")
        raise Refused(f"data: image_size is {side}, which {kind} cannot read ({fault}); give {own}, or leave it out")


def _fault(model: PreTrainedModel, side: int) -> str:
    """What the model says against images of a side; empty for nothing."""
    channels = int(getattr(model.config, "num_channels", 3))
    try:
        with torch.no_grad():
            model(pixel_values=torch.empty((2, channels, side, side), dtype=model.dtype, device="meta"))
    except Exception as error:  # its own code may raise anything
        return first_line(error) or type(error).__name__
    return ""


def usable_positions(config: PretrainedConfig, request: ModelRequest) -> int | None:
    """Return the largest number of tokens that a text may have; None if any number will do, or nothing is told."""
    text = text_part(config)
    known = (key for key in LIMITS if hasattr(type(text), key) or key in text.attribute_map)  # not T5's n_positions
    told: int | None = next(filter(None, (getattr(text, key) for key in known)), None)
    if not getattr(text, "position_biased_input", True) or getattr(text, "alibi", False):
        return None  # DeBERTa without a table, and such a Falcon, see distances alone
    if told is None or told < 1 or head_of(request.task) == IMAGE:  # XLNet says -1 where any number will do
        return told if told is not None and told > 0 else None
    return _after_padding(untied_model(config, request)) or told


def _after_padding(model: nn.Module) -> int | None:
    """Return the number of usable positions of a family that counts from behind the index of padding; None for others.

    Such a family has a table of positions with a row for padding, as word embeddings have one, since it computes
    positions from the tokens that are no padding (RoBERTa, MPNet, Longformer and others).
    """
    found = []
    for name, table in model.named_modules():
        padding, rows = getattr(table, "padding_idx", None), getattr(table, "weight", None)
        if name.rpartition(".")[2] in POSITIONS and padding is not None and rows is not None:
            found.append(len(rows) - int(padding) - 1)
    return min(found, default=None)
