"""Whether a stage has to run, and why: decided by keys alone, for a run and for a dry run alike."""

from collections.abc import Mapping
from dataclasses import field, replace

from fleetune.contracts import wire
from fleetune.contracts.config.run import RunConfig
from fleetune.contracts.record import record
from fleetune.errors import Refused
from fleetune.store import Ingredients, RunRecord, Store, changes, stage_key
from fleetune.store.key import CODE, leaves
from flows.predecessors import left_ingredients
from flows.setting import Setting, Wish
from stages.catalog import StageEntry, config_slice, entry, maker, waves


@record
class Decision:
    """What is to be done about one stage."""

    key: str
    ingredients: Ingredients
    inputs: dict[str, str] = field(default_factory=dict)
    stored: dict[str, str] | None = None
    """Outputs that the key stands for, when they are in the store; of a stage that measures the world, what the new
    measurement is compared with."""
    unfinished: str = ""
    """The run whose measurement `stored` is, when that run was begun by the same config and is not done."""
    runs: bool
    why: str
    """`ran: ...` or `reused: ...`."""


class Judge:
    """Keys and reasons of one run's stages."""

    def __init__(self, setting: Setting, config: RunConfig, wish: Wish) -> None:
        """Reads every digest from outside the store once; Refused when something is missing or misnamed."""
        self._setting = setting
        self._config = config
        self._plain = wire.dump(config)
        self._wish = wish
        self._prove_wish()
        wanted = {name for row in self.rows() for name in row.content}
        self._contents = {name: setting.contents[name](config) for name in sorted(wanted)}

    def rows(self) -> tuple[StageEntry, ...]:
        """The stages of this run, in order: all, those up to the one wished for, or those it needs."""
        order = [row for wave in waves(self._setting.catalog) for row in wave]
        if self._wish.until is not None:
            order = order[: [row.name for row in order].index(self._wish.until) + 1]
        if self._wish.only is None:
            return tuple(order)
        needed, todo = set(), [entry(self._setting.catalog, self._wish.only)]
        while todo:
            row = todo.pop()
            needed.add(row.name)
            todo += [maker(self._setting.catalog, kind) for kind in row.inputs]
        return tuple(row for row in order if row.name in needed)

    def must_be_stored(self, row: StageEntry) -> bool:
        """Whether the wish is to start from what this stage has made before."""
        names = [other.name for other in self.rows()]
        if self._wish.only is not None and row.name != self._wish.only:
            return self._wish.from_stage is None or names.index(row.name) < self._first(names)
        return self._wish.from_stage is not None and names.index(row.name) < self._first(names)

    def decide(self, row: StageEntry, inputs: Mapping[str, str], run: str = "", beside: str = "") -> Decision:
        """Decide about a stage whose inputs are known; `beside` is the key of the stage it runs beside."""
        store = self._setting.store
        ingredients = self._ingredients(row, inputs, beside)
        key = stage_key(ingredients)
        stored = store.find(key)
        found = Decision(key=key, ingredients=ingredients, inputs=dict(inputs), stored=stored, runs=True, why="")
        if row.name == self._wish.from_stage:
            return replace(found, why="ran: asked for with --from")
        if stored is not None and (self.must_be_stored(row) or not row.always):
            return replace(found, runs=False, why=_same_key(store, key))
        reason = self._reason(row, key, ingredients, run)
        if self.must_be_stored(row):
            raise Refused(
                f"stage {row.name} has to run first ({reason}); run without --only, or with --from {row.name}"
            )
        if row.settles:
            found = self._unfinished(row, found, run)
        if row.always and (row.beside or found.stored is not None):
            reason = f"beside {row.beside}" if row.beside else "measured in every run"
        return replace(found, why=f"ran: {reason}")

    def _unfinished(self, row: StageEntry, found: Decision, this_run: str) -> Decision:
        """With what the newest run of the same config measured, unless a run of it has come to its end since."""
        store = self._setting.store
        for run in store.runs.named(self._config.name):
            if run.id == this_run or wire.dump(run.config) != self._plain:
                continue
            past = {stage.stage: stage for stage in run.stages}
            if run.state == "done" and all(one.name in past for one in self.rows()):
                break
            made = past[row.name].outputs if row.name in past else {}
            if run.state != "done" and made and all(store.has(kind, digest) for kind, digest in made.items()):
                return replace(found, stored=dict(made), unfinished=run.id)
        return found

    def _prove_wish(self) -> None:
        """Refuse stages that do not exist or contradict each other, and to work on devices that do not exist."""
        wish = self._wish
        for name in (wish.from_stage, wish.only, wish.until):
            if name is not None:
                entry(self._setting.catalog, name)
        if wish.only is not None and wish.until is not None:
            raise Refused(f"--only {wish.only} and --until {wish.until} both say where to stop; give one of them")
        rows = self.rows()
        names = [row.name for row in rows]
        if wish.until is not None and wish.from_stage is not None and wish.from_stage not in names:
            raise Refused(f"--from {wish.from_stage} comes after --until {wish.until}; give an earlier stage")
        for row, before in zip(rows[1:], names, strict=False):
            if row.needs_machines and self._config.fleet.simulated:
                raise Refused(
                    f"device {self._config.fleet.simulated[0]} is simulated: a run with it ends after {before}; "
                    f"use --until {before}"
                )

    def _first(self, names: list[str]) -> int:
        """Where `--from` points; past the end when that stage is not of this run."""
        return names.index(self._wish.from_stage) if self._wish.from_stage in names else len(names)

    def _ingredients(self, row: StageEntry, inputs: Mapping[str, str], beside: str) -> Ingredients:
        named: Ingredients = {"stage": row.name, "stage version": str(row.version)}
        if not row.always:
            named.update({f"{CODE}{path}": digest for path, digest in self._setting.sources(row.module).items()})
        named.update({f"package.{name}": self._setting.versions(name) for name in row.packages})
        for section, value in config_slice(row, self._plain).items():
            named.update({f"config.{name}": text for name, text in leaves(value, section).items()})
        named.pop("config.model.revision", None)  # what is there counts as content, whatever it is called
        if not row.always:
            named["seed"] = str(self._config.seed)
        named.update({f"content.{name}": self._contents[name] for name in row.content})
        named.update({f"input.{kind}": digest for kind, digest in inputs.items()})
        if beside:
            named[f"input.key of {row.beside}"] = beside
        return named

    def _reason(self, row: StageEntry, key: str, ingredients: Ingredients, this_run: str) -> str:
        """Against the run that is run again, else the newest earlier one of the same config name, that had this stage,
        whether it ended or not."""
        store = self._setting.store
        for run in self._compared_with(this_run):
            past = next((stage for stage in run.stages if stage.stage == row.name), None)
            if past is None or not past.key:
                continue
            if past.key == key:
                gone = f"its artifacts are gone from the store, {run.id} had them"
                return gone if past.state == "done" else f"{run.id} did not finish it"
            made = store.key(past.key)
            old = made.ingredients if made is not None else left_ingredients(store, past.key)
            if old:
                return changes(old, ingredients)
        return "never run before"

    def _compared_with(self, this_run: str) -> list[RunRecord]:
        """Earlier runs, the one first that the user has in mind."""
        named = [run for run in self._setting.store.runs.named(self._config.name) if run.id != this_run]
        return sorted(named, key=lambda run: run.id != self._wish.rerun)


def _same_key(store: Store, key: str) -> str:
    found = store.key(key)
    assert found is not None, "a key that was found has a record"
    return f"reused: same key as {found.run}"
