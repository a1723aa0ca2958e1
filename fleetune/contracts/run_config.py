"""The config of a run: model, data, training, strategy and stages. Unknown keys are refused by name."""

import re
from dataclasses import field, replace
from typing import Annotated, Any

from pydantic import Field

from fleetune.contracts.fleet import LAUNCHERS, PROCESS
from fleetune.contracts.fleet_request import FleetRequest
from fleetune.contracts.mixed_precision import HALF, check_mixed_precision
from fleetune.contracts.quantization import check_quantization
from fleetune.contracts.record import check_name, not_negative, one_of, positive, record
from fleetune.contracts.schedule import Schedule
from fleetune.contracts.tasks import SCORES, TASKS
from fleetune.contracts.tracking import TrackingRequest
from fleetune.contracts.training_request import TrainingRequest
from fleetune.contracts.url_passwords import refuse_password
from fleetune.errors import Refused

NO_PASSWORD = "leave it out, and give a folder, a file or a name on the hub, whose token lies in HF_TOKEN"


@record
class Lora:
    """Low-rank adapters (PEFT); only they and the task's head are trained."""

    r: int = 8
    alpha: float = 16.0
    dropout: float = 0.0
    targets: tuple[str, ...] | str
    """Names of the modules that get an adapter, or one regular expression."""
    start: str | None = None
    """Folder of a PEFT adapter to start from."""

    def __post_init__(self) -> None:
        positive("lora", r=self.r, alpha=self.alpha)
        not_negative("lora", dropout=self.dropout)
        if self.dropout >= 1:
            raise Refused(f"lora: dropout must be below 1 (got {self.dropout})")


@record
class ModelRequest:
    """The `model` section of a run.

    `source` is a folder, a name on the Hugging Face hub, or `package:NAME` (a Python package that contains a model).
    Without `source`, `config` with its `model_type` describes a model with random weights.
    """

    task: str
    source: str | None = None
    config: dict[str, Any] | None = None
    """Changes to the model's own configuration; without `source` the whole configuration."""
    lora: Lora | None = None
    freeze: tuple[str, ...] = ()
    """Regular expressions; parameters whose name matches one from its start are frozen."""
    granularity: str = "block"
    """Size of a unit: `block` (a transformer or residual block) or `layer`."""
    precision: str = "float32"
    mixed_precision: Annotated[str | None, Field(exclude_if=lambda value: value is None)] = None
    """`bf16` or `fp16`: forward, backward and frozen weights are of that type; trained weights, their gradients and
    optimizer state stay float32. None: everything is `precision`."""
    quantization: Annotated[str | None, Field(exclude_if=lambda value: value is None)] = None
    """`nf4`: the frozen weights of linear layers are held in 4 bits, as in QLoRA. None: they are as `precision` and
    `mixed_precision` say."""
    revision: Annotated[str | None, Field(exclude_if=lambda value: value is None)] = None
    """Branch, tag or commit on the hub; by default the main branch. The run record holds the resolved commit."""
    cache_activations: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    """True: what the frozen first units make of the training samples is computed once, without dropout, and stored with
    the data; devices hold and run the other units alone."""

    def __post_init__(self) -> None:
        for setting, url in (("source", self.source), ("lora.start", self.lora and self.lora.start)):
            refuse_password(f"model.{setting}", url or "", NO_PASSWORD)
        one_of("model", "task", self.task, TASKS)
        one_of("model", "granularity", self.granularity, ("block", "layer"))
        one_of("model", "precision", self.precision, ("float32", "float64"))
        check_mixed_precision(self.mixed_precision, self.precision)
        check_quantization(self.quantization, self.precision, self.lora is not None)
        for pattern in self.freeze:
            try:
                re.compile(pattern)
            except re.error as error:
                raise Refused(f"model: freeze has {pattern!r}, which is not a regular expression ({error})") from None
        if self.revision is not None and self.source is None:
            raise Refused(
                f"model: revision {self.revision!r} needs a source; give a name on the hub, or leave revision out"
            )
        if self.source is None and not (self.config or {}).get("model_type"):
            raise Refused("model: give source (a folder, a hub name, package:NAME) or config with a model_type")

    @property
    def compute(self) -> str:
        """Name of the half type that forward and backward compute in; empty: they compute in `precision`."""
        return HALF[self.mixed_precision] if self.mixed_precision else ""


BUILT_IN = ("digits", "docstrings", "stdlib-sources")
TARGET_COLUMN = "target"
ROW_FORMATS = (TEXT, CHAT, COMPLETION) = ("text", "chat", "completion")
COMPLETIONS = "completions"
NO_FILES = (
    "data: newest_files is {newest_files}, but {source} is not a folder of data files; give a folder with files such "
    "as 2026-11-22.jsonl, or leave newest_files out"
)


@record
class DataRequest:
    """The `data` section of a run.

    `source` is one of the built-in sets (digits, docstrings, stdlib-sources), a .jsonl, .json, .csv or .parquet file
    (or a folder with train.* and test.* files), a folder with a folder of images per class (below train/ and test/
    where there are splits), or a Hugging Face dataset by folder or hub name.
    """

    source: str = ""
    text_column: str = "text"
    image_column: str = "image"
    label_column: str = "label"
    target_column: Annotated[str, Field(exclude_if=lambda value: value == TARGET_COLUMN)] = TARGET_COLUMN
    """For seq2seq: the text that is to be written of the one in text_column; rows may have prompt and completion."""
    max_length: int = 64
    """Tokens per sample; longer texts are cut, shorter ones padded."""
    target_length: Annotated[int | None, Field(exclude_if=lambda value: value is None)] = None
    """For seq2seq: tokens per target, cut and padded alike; None: max_length."""
    image_size: int | None = None
    """Width and height in pixels to which images are resized; by default the model's own."""
    train_samples: int | None = None
    """At most this many (the first of a seeded shuffle); by default all."""
    test_samples: int | None = None
    """Exactly this many, from the same shuffle; a data set with fewer is refused."""
    test_fraction: float = 0.2
    """Share of the samples held out for testing if the source has no test split."""
    split_by_content: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    """True: its content alone decides whether a sample is held out, as with `newest_files`; the default
    of run files with `promote`."""
    local: Annotated[dict[str, str], Field(exclude_if=lambda value: not value)] = field(default_factory=dict)
    """Device -> source that lies on it and stays there: its lane trains on all of it, and `source` is only tested on.
    For split-learning and lola-deft."""
    newest_files: Annotated[int | None, Field(exclude_if=lambda value: value is None)] = None
    """Of a folder, train on the last so many files by name, such as 2026-11-22.jsonl; older ones are not read."""
    format: Annotated[str | None, Field(exclude_if=lambda value: value is None)] = None
    """Rows of causal-lm: `text`, `chat` (messages) or `completion` (prompt, completion); by default by the columns."""
    chat_template: Annotated[str | None, Field(exclude_if=lambda value: value is None)] = None
    """File with the chat template (Jinja) that replaces the tokenizer's own."""
    loss_on: Annotated[str, Field(exclude_if=lambda value: value == COMPLETIONS)] = COMPLETIONS
    """Tokens of chats and completions that carry loss: `completions` (what the assistant says), or `all`."""
    files: Annotated[tuple[str, ...], Field(exclude_if=lambda value: not value)] = ()
    """Several files instead of `source`, or patterns such as chats/*.jsonl; their rows follow each other."""
    validation: Annotated[str | float | None, Field(exclude_if=lambda value: value is None)] = None
    """What is tested on: another source, or a share of the samples (then as test_fraction). 1: all of them, or the
    test split, as `evaluate` asks; then none is trained on."""
    packing: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    """True: samples of causal-lm share sequences of max_length, in which none sees another."""
    streaming: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    """True: of a set on the hub, only the rows that train_samples and test_samples need are read, and none is kept."""

    def __post_init__(self) -> None:
        named = (self.source, *self.files, *self.local.values(), self.chat_template, self.validation)
        for url in named:
            refuse_password("data", url if isinstance(url, str) else "", NO_PASSWORD)
        self._check_chats()
        self._check_streaming()
        self._check_sources()
        for device, source in self.local.items():
            check_name("data.local: device", device)
            if not source:
                raise Refused(f"data.local.{device} is empty; allowed are {', '.join(BUILT_IN)}, a file or a folder")
        if not self.named and self.local:
            raise Refused(
                "data: source is empty, and what lies on devices (data.local) cannot be tested on; give data.source, "
                "of which the test rows evaluate the model"
            )
        if not self.named:
            raise Refused(f"data: source is empty; allowed are {', '.join(BUILT_IN)}, a file, a folder or a hub name")
        positive("data", max_length=self.max_length)
        for name, value in (
            ("train_samples", self.train_samples),
            ("test_samples", self.test_samples),
            ("image_size", self.image_size),
            ("target_length", self.target_length),
            ("newest_files", self.newest_files),
        ):
            if value is not None:
                positive("data", **{name: value})
        if self.newest_files is not None and self.source in BUILT_IN:
            raise Refused(NO_FILES.format(newest_files=self.newest_files, source=self.source))
        not_negative("data", test_fraction=self.test_fraction)
        if not 0 < self.test_fraction < 1:
            raise Refused(f"data: test_fraction must lie between 0 and 1 (got {self.test_fraction})")

    @property
    def named(self) -> str:
        """The source, or the files, for messages."""
        return self.source or ", ".join(self.files)

    @property
    def held_out_share(self) -> float:
        """Share of the samples that is held out for testing where there is no test split."""
        return self.validation if isinstance(self.validation, float) else self.test_fraction

    @property
    def by_content(self) -> bool:
        """True: a sample is held out by its content alone."""
        return self.split_by_content or self.newest_files is not None

    @property
    def only_tested(self) -> bool:
        """True: nothing is trained on."""
        return self.validation == 1.0

    def _check_sources(self) -> None:
        if self.source and self.files:
            raise Refused(f"data: give source ({self.source}) or files ({', '.join(self.files)}), not both")
        if self.files and self.newest_files is not None:
            raise Refused(NO_FILES.format(newest_files=self.newest_files, source=self.named))
        if isinstance(self.validation, float) and not 0 < self.validation <= 1:
            raise Refused(
                f"data: validation must be a source, or a share between 0 and 1 (got {self.validation}); 0.1 holds a "
                "tenth of the samples out"
            )
        if self.validation == "":
            raise Refused("data: validation is empty; give a source, a share such as 0.1, or leave it out")

    def _check_streaming(self) -> None:
        if self.streaming and (self.train_samples is None or self.test_samples is None):
            raise Refused(
                "data: streaming reads no more rows than it is asked for; give data.train_samples and data.test_samples"
            )
        if self.streaming and self.split_by_content and not self.only_tested:
            raise Refused(
                "data: split_by_content does not go with streaming, which reads as many rows as it is asked for; leave "
                "one of them out"
            )

    def _check_chats(self) -> None:
        one_of("data", "loss_on", self.loss_on, (COMPLETIONS, "all"))
        if self.format is not None:
            one_of("data", "format", self.format, ROW_FORMATS)
        if self.chat_template is not None and self.local:
            raise Refused(
                "data: chat_template is a file of this machine, which devices with data of their own (data.local) do "
                "not have; put it into the model's folder as chat_template.jinja"
            )


STRATEGIES = ("asteroid", "d2ft", "dp", "fusionllm", "lola-deft", "pp", "single", "split-learning")
"""Names of the strategies of `fleetune.planning`, whose import takes most of a second."""
LOCAL_STRATEGIES = ("split-learning", "lola-deft")
"""Strategies whose lanes have data of their own."""
TRAIN_PARTS = ("lola-deft",)
"""Strategies whose devices train some units of what they run."""
COMPRESSION_OPTIONS = ("compression", "compression_ratio")
"""Options of any strategy that ask for compressed links; null: none."""


@record
class StrategyRequest:
    """The strategy that plans, and its options, which the strategy validates."""

    name: str = "asteroid"
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def compresses(self) -> bool:
        """True if the options ask for compressed links."""
        return any(self.options.get(name) is not None for name in COMPRESSION_OPTIONS)


@record
class StagesRequest:
    """Launcher and image of the stages that run on no device: prepare, plan, monitor and evaluate."""

    launcher: str = PROCESS
    """`process`, or `docker`: each stage in a container of this machine's engine, without a network."""
    image: str | None = None
    """One image for all of them, instead of fleetune-plan and fleetune-train."""

    def __post_init__(self) -> None:
        one_of("stages", "launcher", self.launcher, LAUNCHERS)


@record
class ProfileRequest:
    """Measurements in addition to the costs of units."""

    scores: bool = False
    """True to score every attention head on the first round's micro-batches, which D2FT needs. Transformers only."""
    codecs: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    """True to time every link codec on every device. A strategy whose options ask for compression sets it."""
    partial: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    """True to time backwards of which only a part is needed: of units that a device runs and does not train, and of the
    lowest one that it trains. Strategies that train parts of the model set it."""


@record
class PromotionRequest:
    """The `promote` section of a run.

    The run starts from the checkpoint that its config name promoted last, where there is one, and promotes its own when
    a score on the test data is better after training than before.
    """

    score: str = "loss"
    """One of the SCORES of the model's task."""
    least_gain: float = 0.0
    """The score must be better by more than this."""

    def __post_init__(self) -> None:
        not_negative("promote", least_gain=self.least_gain)


@record
class RunConfig:
    """A run file. Each section may instead be the name of a file in configs/."""

    name: str
    seed: int = 0
    fleet: FleetRequest = FleetRequest()
    model: ModelRequest
    data: DataRequest
    training: TrainingRequest
    strategy: StrategyRequest = StrategyRequest()
    stages: Annotated[StagesRequest, Field(exclude_if=lambda value: value == StagesRequest())] = StagesRequest()
    profile: Annotated[ProfileRequest, Field(exclude_if=lambda value: value == ProfileRequest())] = ProfileRequest()
    schedule: Annotated[Schedule | None, Field(exclude_if=lambda value: value is None)] = None
    promote: Annotated[PromotionRequest | None, Field(exclude_if=lambda value: value is None)] = None
    tracking: Annotated[TrackingRequest, Field(exclude_if=lambda value: value == TrackingRequest())] = TrackingRequest()

    def __post_init__(self) -> None:
        check_name("run", self.name)
        not_negative("run", seed=self.seed)
        self._check_local_data()
        if self.strategy.compresses and not self.profile.codecs:
            object.__setattr__(self, "profile", replace(self.profile, codecs=True))
        if self.strategy.name in TRAIN_PARTS and not self.profile.partial:
            object.__setattr__(self, "profile", replace(self.profile, partial=True))
        if self.promote is None:
            return
        one_of(f"promote: for {self.model.task}", "score", self.promote.score, SCORES[self.model.task])
        if self.fleet.simulated:
            raise Refused(
                f"promote: device {self.fleet.simulated[0]} is simulated, so that nothing is trained and nothing can "
                "be promoted; leave promote out, or give real devices"
            )

    def _check_local_data(self) -> None:
        """Refuse local data of unknown or simulated devices, and a strategy by which they would leave their device."""
        names = [device.name for device in self.fleet.devices]
        if self.data.local and self.strategy.name not in LOCAL_STRATEGIES:
            raise Refused(
                f"data.local: with strategy {self.strategy.name} samples or labels would leave their device; choose "
                f"{' or '.join(LOCAL_STRATEGIES)}, or leave data.local out"
            )
        if self.data.local and self.model.cache_activations:
            raise Refused(
                "model: cache_activations stores on this machine what samples are made into, and data of the devices' "
                "own (data.local) must not reach it; leave one of them out"
            )
        for device in self.data.local:
            one_of("data.local", "device", device, names)
            if device in self.fleet.simulated:
                raise Refused(f"data.local: device {device} is simulated and has no data; leave data.local out")
