"""A past run's checkpoint, evaluated again: on the data it was tested on, or on other data that fit its model.

The evaluation is a run of one stage that is given the artifacts of the past run. Other data are prepared first, by the
model's own settings; they fit if their classes, their tokenizer and the size of their images are those of the past run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fleetune.contracts import json_io
from fleetune.contracts.record import record
from fleetune.contracts.run_config import DataRequest, ModelRequest, RunConfig
from fleetune.contracts.tasks import predicts_number
from fleetune.data.prepared_data import INFO, PIXELS, TOKENIZER, DataInfo, PreparedData
from fleetune.data.seen_samples import seen_samples
from fleetune.data.sources import is_hub_name
from fleetune.errors import Refused
from fleetune.formatting import shortlist
from fleetune.models.earlier_run import is_continued
from fleetune.store import RunRecord, Store
from fleetune.store.runs import EVALUATION, REFUSED
from flows import api, configs, yaml_file
from flows.context import RunContext, StageSelection
from flows.form import AS_GIVEN
from flows.promoted_start import in_this_store
from flows.runner import Runner
from flows.tracking import StageEvent
from stages.catalog import EVALUATE, PREPARE

DATA_FILES, STREAMING = "data.files", "data.streaming"


@record
class EvaluationRequest:
    """The values of the form of `evaluate`."""

    run: str
    """Name of a past run, as RunRegistry.load takes it."""
    data: str = AS_GIVEN
    """Name of a file in configs/data."""
    changes: tuple[str, ...] = ()
    """KEY=VALUE each, of keys of the data section."""
    force: bool = False

    def sets(self, past: DataRequest, on_hub: bool = False) -> list[str]:
        """The changes of the config, whose data were `past`. Refused: a change of anything but the data.

        on_hub: the data that are named are a set on the hub.
        """
        for change in self.changes:
            if not change.startswith("data."):
                raise Refused(
                    f"changes: {change!r} is not about the data; a checkpoint is evaluated as it was trained, so only "
                    "data.source, data.test_samples and other keys of data can change"
                )
        section = [] if self.data == AS_GIVEN else [f"data={self.data}"]
        return [*section, *_whole(self.changes, past, on_hub), *self.changes]


def _whole(changes: Sequence[str], past: DataRequest, on_hub: bool) -> list[str]:
    """Changes before those that name data: these are scored whole, and not as the data of training were split.

    A test split of theirs is, where they have one, and a share where the changes ask for one.
    """
    keys = {key.strip(): value for key, _, value in (change.partition("=") for change in changes)}
    named = keys.keys() & {configs.DATA_SOURCE, DATA_FILES}
    if not named and configs.DATA_VALIDATION not in keys:
        return []
    streams = past.streaming if STREAMING not in keys else yaml_file.parse(keys[STREAMING], STREAMING) is True
    if (
        not named
        and streams
        and isinstance(yaml_file.parse(keys[configs.DATA_VALIDATION], configs.DATA_VALIDATION), str)
    ):
        raise Refused(
            f"changes: {configs.DATA_VALIDATION} stands beside a stream, of which training needs but a part; give the "
            f"same as {configs.DATA_SOURCE}, which is scored whole"
        )
    before = list[str]()
    if named and streams and not on_hub and STREAMING not in keys:  # only sets on the hub are streams
        streams = False
        before.append(f"{STREAMING}=false")
    if not streams:  # a stream reads no more than it is asked for
        before.append("data.test_samples=null")
    if not named:
        return before
    share = "null" if "data.test_fraction" in keys else "1.0"
    place = f"{DATA_FILES}=[]" if configs.DATA_SOURCE in named else f"{configs.DATA_SOURCE}=''"
    return [place, f"{configs.DATA_VALIDATION}={share}", "data.newest_files=null", *before]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reevaluation:
    """What a request asks for: the past run, its artifacts, and the config with the data that are asked for."""

    past: RunRecord
    config: RunConfig
    given: Mapping[str, str]
    """kind -> digest of every input of the stage, as the past run had them."""
    other_data: bool
    """The request names data; they are prepared by their content, even where the past run names the same source."""
    force: bool

    @property
    def title(self) -> str:
        """`demo · evaluated again on reviews.csv`."""
        data = self.config.data
        named = data.validation if isinstance(data.validation, str) else data.named
        return f"{self.config.name} · evaluated again on {named.rstrip('/').rpartition('/')[2]}"

    def runner(self, context: RunContext, run_with: api.RunWith = api.run_with) -> Runner:
        """The run of the evaluation, after `run_with` has prepared other data. Refused: they do not fit the model."""
        given = dict(self.given)
        trained = context.store.manifest("checkpoint", given["checkpoint"]).inputs.get("data", "")
        if self.other_data:
            model = with_classes(self.config.model, _info(context.store, self.given["data"]).labels)
            config = replace(self.config, model=model)
            selection = StageSelection(until=PREPARE.name, rerun=self.past.id, beside=EVALUATION)
            prepared = run_with(context, config, selection)
            given["data"] = prepared.outputs["data"]
            try:
                check_fit(context.store, self.past.id, self.given["data"], given["data"])
            except Refused as error:  # what is left of the evaluation is the run that prepared the data
                ended = replace(prepared, state=REFUSED, error=str(error), exit_code=error.exit_code)
                context.store.runs.save(ended)
                raise
        selection = StageSelection(
            only=EVALUATE.name,
            given=given,
            rerun=self.past.id,
            force=self.force,
            beside=EVALUATION,
            trained_on=None if given["data"] == trained else _seen(context, self.config.model, trained, given["data"]),
        )
        return Runner(context, self.config, selection)


def _seen(context: RunContext, model: ModelRequest, trained: str, scored: str) -> int | str:
    """How many samples of the data `scored` were trained on, or why that is not known."""
    store = context.store
    if is_continued(model):
        return "it began as the model of an earlier run"
    if not trained or not store.has("data", trained):
        return "the data that it was trained on are gone from the store"

    def progress(what: str, done: float, total: float, unit: str = "", detail: str = "") -> None:
        event = StageEvent(stage=EVALUATE.name, kind="progress", text=what, done=done, total=total, unit=unit)
        context.listen(event)

    old, new = (PreparedData(store.folder("data", digest)) for digest in (trained, scored))
    return seen_samples(old, new, progress)


def reevaluation(request: EvaluationRequest, store: Store) -> Reevaluation:
    """What `request` asks for. Refused: an unknown run, one without a checkpoint, gone artifacts, wrong data."""
    past = store.runs.load(request.run, trained=True)
    begun = in_this_store(store, past.config)
    config, sets = begun, request.sets(begun.data)
    if sets:
        config = configs.with_changes(_without_local_data(begun), sets, past.id)
        if begun.data.streaming and is_hub_name(config.data.source):
            config = configs.with_changes(_without_local_data(begun), request.sets(begun.data, on_hub=True), past.id)
    known: dict[str, str] = {}
    for stage in past.stages:  # a run that evaluated again has the checkpoint among its inputs
        known = {**stage.inputs, **known, **stage.outputs}
    for kind in EVALUATE.inputs:
        if kind not in known:
            ended = past.stages[-1].stage if past.state == "done" and past.stages else past.state
            raise Refused(
                f"run: {past.id} has no {kind} to evaluate (it is {past.state}, its last stage is {ended}); "
                "choose a run that was trained to its end"
            )
        if not store.has(kind, known[kind]):
            raise Refused(
                f"run: the {kind} of {past.id} is gone from the store; fleetune rerun {past.id} makes it anew"
            )
    given = {kind: known[kind] for kind in EVALUATE.inputs}
    return Reevaluation(past=past, config=config, given=given, other_data=bool(sets), force=request.force)


def _without_local_data(config: RunConfig) -> RunConfig:
    """The config without data that lie on devices: they were trained on, and no model is evaluated on them."""
    return replace(config, data=replace(config.data, local={}))


def with_classes(model: ModelRequest, labels: tuple[str, ...]) -> ModelRequest:
    """The request by which other data are prepared for a trained model: nothing is trained on them, and its classes
    keep their numbers, also where the data have only some of them or in another order."""
    model = replace(model, cache_activations=False)
    if not labels or predicts_number(model.task):
        return model
    numbered = {str(number): name for number, name in enumerate(labels)}
    return replace(model, config={**(model.config or {}), "id2label": numbered})


def _info(store: Store, digest: str) -> DataInfo:
    return json_io.read(DataInfo, store.folder("data", digest) / INFO)


def check_fit(store: Store, run: str, trained: str, other: str) -> None:
    """Refuse prepared data (artifact `other`) that do not fit the model of `run`, which was trained on `trained`."""
    old, new = (_info(store, digest) for digest in (trained, other))
    if old.labels != new.labels and not predicts_number(old.task):  # whose label is a column's name
        raise Refused(
            f"data: {new.source} has the classes {shortlist(new.labels)}, and the model of {run} was trained for "
            f"{shortlist(old.labels)}; give data with no others"
        )
    if _tokenizer(store, trained) != _tokenizer(store, other):
        raise Refused(
            f"data: the texts of {new.source} have another tokenizer than those that the model of {run} was trained on "
            "(a model from random weights learns its tokenizer from its data); choose a run whose model has its own"
        )
    sizes = [_image_shape(info) for info in (old, new)]
    if sizes[0] != sizes[1]:
        raise Refused(
            f"data: the images of {new.source} are {sizes[1]}, and the model of {run} was trained on {sizes[0]}; set "
            "data.image_size"
        )


def _tokenizer(store: Store, digest: str) -> dict[str, str]:
    """path -> sha256 of the tokenizer's files in prepared data; empty for images. Without the configuration of the
    model, which is that of the run's in any case, and which data of earlier versions do not have."""
    files, model = store.manifest("data", digest).files, f"{TOKENIZER}/config.json"
    return {file.path: file.sha256 for file in files if file.path.startswith(f"{TOKENIZER}/") and file.path != model}


def _image_shape(info: DataInfo) -> str:
    """`3 x 32 x 32`; empty for texts."""
    shapes = {array.shape[1:] for split in info.splits for array in split.arrays if array.name == PIXELS}
    return " or ".join(" x ".join(map(str, shape)) for shape in sorted(shapes))
