"""Which stages of a run are executed and which are reused from the store, decided by stage keys, and the reasons.

Dry runs decide by the same code. A stage that measures always runs; its stored measurement is kept until
another is believed.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path

from fleetune.contracts import json_io
from fleetune.contracts.fleet import DOCKER
from fleetune.contracts.record import record
from fleetune.contracts.run_config import RunConfig
from fleetune.errors import Refused, TryAgain
from fleetune.store import Ingredients, RunRecord, Store, changes, stage_key
from fleetune.store.stage_key import CODE_PREFIX, flatten_config
from flows.attempt import read_ingredients
from flows.context import RunContext, StageSelection
from flows.promoted_start import without_place
from flows.provenance import MeasurementPair, MeasurementVerdict
from stages.catalog import StageSpec, config_slice, content_names


@record
class Decision:
    """Run or reuse one stage, and why."""

    key: str
    ingredients: Ingredients
    inputs: dict[str, str] = field(default_factory=dict)
    stored: dict[str, str] | None = None
    """Stored outputs of the key; None when there are none. A new measurement is compared with them."""
    unfinished: str = ""
    """Id of the unfinished run of the same config that `stored` was measured by; empty otherwise."""
    runs: bool
    why: str
    """`ran: ...` or `reused: ...`."""


class CachePolicy:
    """Decisions about the stages of one run, and the checks of artifacts that it reuses."""

    def __init__(self, context: RunContext, config: RunConfig, selection: StageSelection) -> None:
        """Read every external digest once; Refused when an input is missing or a stage does not exist."""
        self._context = context
        self._config = config
        self._plain = json_io.dump(without_place(config))
        self._selection = selection
        self._verified: set[tuple[str, str]] = set()
        selection.validate(context.catalog, config)
        self.specs = selection.stages(context.catalog)
        wanted = {name for spec in self.specs for name in content_names(spec, self._plain)}
        self._marks = {name: mark(config) for name, mark in context.marks.items() if name in wanted}
        self._contents = {name: context.contents[name](config) for name in sorted(wanted)}
        has_own_image = any(map(self._has_own_image, self.specs))
        self._image = context.image_id(config.stages.image or "") if has_own_image else ""

    def must_be_stored(self, spec: StageSpec) -> bool:
        """True when the selection starts from stored outputs of this stage."""
        return self._selection.must_be_stored(self._context.catalog, spec.name)

    def decide(self, spec: StageSpec, inputs: Mapping[str, str], run: str = "", leader_key: str = "") -> Decision:
        """Decide about a stage whose input digests are known; `leader_key` is the key of the stage that it follows."""
        store = self._context.store
        ingredients = self._ingredients(spec, inputs, leader_key)
        key = stage_key(ingredients)
        stored = store.find(key)
        found = Decision(key=key, ingredients=ingredients, inputs=dict(inputs), stored=stored, runs=True, why="")
        if spec.name == self._selection.from_stage:
            return replace(found, why="ran: asked for with --from")
        if self._forced(spec):
            return replace(found, why="ran: asked for with --force")
        if stored is not None and (self.must_be_stored(spec) or not spec.always_runs):
            return replace(found, runs=False, why=_same_key(store, key))
        reason = self._reason(spec, key, ingredients, run)
        if self.must_be_stored(spec):
            advice = self._selection.way_to_run(spec.name)
            raise Refused(f"stage {spec.name} has to run first ({reason}); {advice}")
        if spec.measures:
            found = self._unfinished(spec, found, run)
        if spec.always_runs and (spec.follows or found.stored is not None):
            reason = f"beside {spec.follows}" if spec.follows else "measured in every run"
        return replace(found, why=f"ran: {reason}")

    def check_contents(self, spec: StageSpec) -> None:
        """TryAgain if what a stage has read beside its inputs is not what its key says: it was changed meanwhile."""
        for name in content_names(spec, self._plain):
            if name not in self._marks or (now := self._context.marks[name](self._config)) == self._marks[name]:
                continue
            if self._context.contents[name](self._config) != self._contents[name]:
                raise TryAgain(
                    f"the {name} were changed while the run was at work, so what {spec.name} has made is of no use; "
                    "run it again"
                )
            self._marks[name] = now

    def is_anew(self, spec: StageSpec) -> bool:
        """True if the user asked to measure again."""
        return self._forced(spec) or spec.name == self._selection.from_stage

    def verify(self, kind: str, digest: str) -> None:
        """Hash an artifact before its first use in this run; Refused when a file is damaged."""
        if (kind, digest) not in self._verified:
            self._context.store.verify(kind, digest)
            self._verified.add((kind, digest))

    def damage(self, spec: StageSpec, decision: Decision) -> str:
        """Describe damage of the artifacts that would be reused, empty for none; Refused when the stage may not run."""
        for kind, digest in (decision.stored or {}).items():
            try:
                self.verify(kind, digest)
            except Refused as error:
                if self.must_be_stored(spec):
                    raise
                return self._context.store.first_bad(kind, digest) or str(error)
        return ""

    def stored_measurement(self, spec: StageSpec, decision: Decision) -> dict[str, Path]:
        """kind -> folder of the earlier measurement of a stage that measures, and of its evidence; those usable."""
        found = {}
        for kind in (spec.measures, spec.evidence):
            digest = (decision.stored or {}).get(kind)
            with suppress(Refused):
                if digest is not None:
                    self.verify(kind, digest)
                    found[kind] = self._context.store.folder(kind, digest)
        return found

    def verdict(self, spec: StageSpec, measured: Mapping[str, Path], decision: Decision) -> MeasurementVerdict:
        """Whether the stored measurement is kept instead of `measured`, and the reason for the run's record."""
        kind = spec.measures
        stored = self.stored_measurement(spec, decision)
        if kind not in stored:
            return MeasurementVerdict(keep=False, why=f"the {kind} has changed")
        found = self._context.judges[kind](
            MeasurementPair(stored=stored, measured=measured, config=self._config, anew=self.is_anew(spec))
        )
        if found.keep:
            said = f": {found.why}" if found.why else ", within tolerance"
            return replace(found, why=f"the stored {kind} is kept{said}")
        if decision.unfinished and self._context.same_members[kind](stored[kind], measured[kind], self._config):
            return MeasurementVerdict(keep=True, why=f"the unfinished run {decision.unfinished} keeps its {kind}")
        return replace(found, why=f"the {kind} has changed" + (f": {found.why}" if found.why else ""))

    def _forced(self, spec: StageSpec) -> bool:
        """True when the selection runs this stage whatever is stored: all that it does not take from the store."""
        return self._selection.force and not self.must_be_stored(spec)

    def _has_own_image(self, spec: StageSpec) -> bool:
        """True when the stage runs in an image of the user's: nobody compares that with the code, as ours are."""
        stages = self._config.stages
        return bool(spec.image and stages.launcher == DOCKER and stages.image)

    def _unfinished(self, spec: StageSpec, found: Decision, this_run: str) -> Decision:
        """Add the measurement of the newest unfinished run of this config, unless a newer run of it is done."""
        store = self._context.store
        for run in store.runs.named(self._config.name):
            if run.id == this_run or json_io.dump(without_place(run.config)) != self._plain:
                continue
            past = {stage.stage: stage for stage in run.stages}
            if run.state == "done" and self.specs[-1].name in past:
                break
            made = past[spec.name].outputs if spec.name in past else {}
            if run.state != "done" and made and all(store.has(kind, digest) for kind, digest in made.items()):
                return replace(found, stored=dict(made), unfinished=run.id)
        return found

    def _ingredients(self, spec: StageSpec, inputs: Mapping[str, str], leader_key: str) -> Ingredients:
        """The ingredients of a stage's key, as store/stage_key.py names them."""
        named: Ingredients = {"stage": spec.name, "stage version": str(spec.version)}
        if not spec.always_runs:
            sources = self._context.sources(spec.module)
            named.update({f"{CODE_PREFIX}{path}": digest for path, digest in sources.items()})
        named.update({f"package.{name}": self._context.versions(name) for name in spec.packages})
        for section, value in config_slice(spec, self._plain).items():
            named.update({f"config.{name}": text for name, text in flatten_config(value, section).items()})
        if self._has_own_image(spec):
            named["content.stages.image"] = self._image
        named.pop("config.model.revision", None)  # the key has the content's digest instead
        if not spec.always_runs:
            named["seed"] = str(self._config.seed)
        named.update({f"content.{name}": self._contents[name] for name in content_names(spec, self._plain)})
        keyed = {kind: digest for kind, digest in inputs.items() if kind not in spec.unkeyed_inputs}
        named.update({f"input.{kind}": digest for kind, digest in keyed.items()})
        facts = {f"input.{fact}": self._fact(fact, spec, inputs) for fact in spec.key_facts}
        named.update({name: text for name, text in facts.items() if text})
        if leader_key:
            named[f"input.key of {spec.follows}"] = leader_key
        return named

    def _fact(self, name: str, spec: StageSpec, inputs: Mapping[str, str]) -> str:
        """The text of a fact about unkeyed inputs; the digests of those inputs when one of them cannot be read."""
        store = self._context.store
        try:
            return self._context.input_facts[name](lambda kind: store.folder(kind, inputs[kind]))
        except Refused:
            return " ".join(inputs[kind] for kind in spec.unkeyed_inputs)

    def _reason(self, spec: StageSpec, key: str, ingredients: Ingredients, this_run: str) -> str:
        """Why the outputs of a key are not in the store: they are gone from it, or how the key differs.

        It is compared with the run that is rerun, else with the newest run of the same config name with this stage.
        """
        store = self._context.store
        if (known := store.key(key)) is not None:
            return f"its artifacts are gone from the store, {known.run} had them"
        for run in self._compared_with(this_run):
            past = next((stage for stage in run.stages if stage.stage == spec.name), None)
            if past is None or not past.key:
                continue
            if past.key == key:
                gone = f"its artifacts are gone from the store, {run.id} had them"
                return gone if past.state == "done" else f"{run.id} did not finish it"
            made = store.key(past.key)
            old = made.ingredients if made is not None else read_ingredients(store, past.key)
            if old:
                return changes(old, ingredients)
        return "never run before"

    def _compared_with(self, this_run: str) -> list[RunRecord]:
        """Earlier runs of the config name, newest first; the run that is rerun comes before them, runs aside after."""
        named = [run for run in self._context.store.runs.named(self._config.name) if run.id != this_run]
        return sorted(named, key=lambda run: (run.id != self._selection.rerun, run.aside))


def _same_key(store: Store, key: str) -> str:
    """The reason of reuse, which names the run that made the outputs."""
    found = store.key(key)
    assert found is not None, "a key that was found has a record"
    return f"reused: same key as {found.run}"
