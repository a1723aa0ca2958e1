"""The model card of a trained model: a README as the Hugging Face hub reads it, with data, training and scores."""

from huggingface_hub import EvalResult, ModelCardData

from fleetune.contracts import json_io
from fleetune.contracts.checkpoint_path import RECEIPT
from fleetune.contracts.mixed_precision import HALF
from fleetune.contracts.run_config import Lora, ModelRequest, RunConfig
from fleetune.contracts.tasks import head_of
from fleetune.data.prepared_data import PreparedData
from fleetune.planning import citations
from flows.hand_over.trained_run import TrainedRun

CLASSES = {
    "sequence-classification": "AutoModelForSequenceClassification",
    "image-classification": "AutoModelForImageClassification",
    "causal-lm": "AutoModelForCausalLM",
    "seq2seq": "AutoModelForSeq2SeqLM",
}
PIPELINES = {
    "sequence-classification": "text-classification",
    "image-classification": "image-classification",
    "causal-lm": "text-generation",
    "seq2seq": "text2text-generation",
}

POOLED = """transformers has no image classifier of this kind: it loads the backbone, and the head is a linear layer.

```python
import torch
from safetensors.torch import load_file
from transformers import AutoImageProcessor, AutoModel

folder = "this folder"
backbone, tensors = AutoModel.from_pretrained(folder), load_file(f"{folder}/model.safetensors")
head = torch.nn.Linear(*reversed(tensors["classifier.weight"].shape))
head.load_state_dict({name: tensors[f"classifier.{name}"] for name in ("weight", "bias")})
pixels = AutoImageProcessor.from_pretrained(folder)(image, return_tensors="pt")  # DINOv3's needs torchvision
label = backbone.config.id2label[int(head(backbone(**pixels).pooler_output).argmax())]
```"""


def model_card(found: TrainedRun, adapter_note: str = "") -> str:
    """Return the card as Markdown.

    adapter_note: how to load an adapter and its base; empty for a model that transformers loads alone.
    """
    config, data = found.run.config, PreparedData(found.data)
    return (
        "\n\n".join(
            [
                f"---\n{_metadata(found, data, bool(adapter_note)).to_yaml()}\n---",
                f"# {config.name}",
                _base(config, bool(adapter_note)),
                adapter_note or _code(found),
                "## Data",
                f"{data.info.source}: {data.describe_sizes()} (sha256 of the content: `{data.info.digest}`). "
                f"{'. '.join(data.info.notes)}".rstrip(),
                *(["## Scores", _scores(found, data)] if found.scores else []),
                "## Training",
                _training(found, data),
                "## Citation",
                "```bibtex\n" + "\n\n".join(citations(config.strategy)) + "\n```",
                *_receipt(found),
            ]
        )
        + "\n"
    )


def _metadata(found: TrainedRun, data: PreparedData, adapter: bool) -> ModelCardData:
    config = found.run.config
    results = [
        EvalResult(
            task_type=PIPELINES[head_of(config.model.task)],
            dataset_type=data.info.source,
            dataset_name=data.info.source,
            dataset_split="test",
            metric_type=score.name,
            metric_value=round(score.after, 6),
        )
        for score in (found.scores.scores if found.scores else ())
    ]
    return ModelCardData(
        base_model=_hub_name(config),
        library_name="peft" if adapter else "transformers",
        pipeline_tag=PIPELINES[head_of(config.model.task)],
        tags=["fleetune", config.strategy.name],
        model_name=config.name,
        eval_results=results or None,
    )


def _hub_name(config: RunConfig) -> str | None:
    """The base's name on the hub; None for a folder, a package or random weights."""
    source = config.model.source
    return source if source is not None and config.model.revision is not None else None


def _base(config: RunConfig, adapter: bool) -> str:
    kind = "A LoRA adapter" if adapter else "A model, its LoRA adapter merged," if config.model.lora else "A model"
    start = f"`{config.model.source}`" if config.model.source else "random weights"
    if config.model.source and not _hub_name(config):
        start = f"`{config.model.source.rstrip('/').rpartition('/')[2]}`"  # no path of the machine that trained
    return f"{kind} for {config.model.task}, fine-tuned from {start} by Fleetune."


def _code(found: TrainedRun) -> str:
    from fleetune.models.model_class import IMAGE  # takes seconds to import, as transformers does
    from fleetune.models.pooled_classifier import needs_pooled_classifier
    from fleetune.models.skeleton import saved_configuration

    head = head_of(found.run.config.model.task)
    if head == IMAGE and needs_pooled_classifier(saved_configuration(found.model / "model")):
        return POOLED
    name = CLASSES[head]
    return f'```python\nfrom transformers import {name}\n\nmodel = {name}.from_pretrained("this folder")\n```'


def _scores(found: TrainedRun, data: PreparedData) -> str:
    assert found.scores is not None
    rows = [f"| {one.name} | {one.before:.4g} | {one.after:.4g} | {one.better} |" for one in found.scores.scores]
    whole = found.scores.samples == data.size("test")
    tested = data.describe_size("test") if whole else f"{found.scores.samples} {_rows_are(data)}"
    of_source = f" of {data.info.source}" if data.info.local else ""
    head = f"On {tested}{of_source}{found.scores.seen}:"
    return "\n".join([head, "", "| | before | after | better |", "|---|---|---|---|", *rows])


def _receipt(found: TrainedRun) -> list[str]:
    """The run's receipt, by which `fleetune verify FOLDER` proves where the store of the run is what it has trained."""
    return [] if found.receipt is None else [RECEIPT, f"```json\n{json_io.text(found.receipt)}```"]


def _rounds(found: TrainedRun) -> str:
    """Rounds in the model, and those that were asked for where these are others."""
    asked, training = found.run.config.training.rounds, found.training
    if training is None:
        return str(asked)
    done = training.result_rounds or len(training.rounds)
    chosen = ", the state with the lowest held-out loss" if training.result_rounds else ""
    return f"{done} of {asked}{chosen}" if done != asked else str(done)


def _rows_are(data: PreparedData) -> str:
    """What a batch counts: of packed data the sequences, which several samples share."""
    return "sequences" if data.packed and not data.info.local else "samples"


def _precision(model: ModelRequest) -> str:
    """The types that training computed in and held its weights in."""
    half = HALF.get(model.mixed_precision or "")
    said = f"{half}, trained weights in float32 (mixed precision)" if half else model.precision
    return f"{said}, frozen linear layers in 4 bits ({model.quantization})" if model.quantization else said


def _lora(lora: Lora) -> str:
    targets = lora.targets if isinstance(lora.targets, str) else ", ".join(lora.targets)
    begun = ", from an earlier adapter" if lora.start else ""
    return f"r {lora.r}, alpha {lora.alpha:g}, dropout {lora.dropout:g}, targets {targets}{begun}"


def _training(found: TrainedRun, data: PreparedData) -> str:
    config = found.run.config
    asked, devices, lora = config.training, len(config.fleet.devices), config.model.lora
    rows = {
        "rounds": _rounds(found),
        f"{_rows_are(data)} of a round": asked.batch_samples,
        "optimizer": asked.optimizer,
        "learning rate": f"{asked.learning_rate:g}, {asked.schedule}",
        "precision": _precision(config.model),
        **({"LoRA": _lora(lora).replace("|", "\\|")} if lora else {}),
        "seed": config.seed,
        "strategy": f"{config.strategy.name}, on {devices} device{'s' if devices > 1 else ''}",
        "run": found.run.id,
        "version": found.run.code_version,
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])
