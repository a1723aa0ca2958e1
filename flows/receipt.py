"""The receipt of a run, `runs/RUN_ID/receipt.json`: what its model came from and became, as a chain of digests.

Each link names digests that the store has anyway: of artifacts, of their files, of stage keys. `check_run` computes
them again and names the first link that breaks. A receipt proves nothing against somebody who writes it anew with all
that it names; it ties a model that was handed over to the run, and the run to its parts.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from fleetune.contracts import json_io
from fleetune.contracts.record import record
from fleetune.errors import Refused
from fleetune.store import RunRecord, Store, stage_key
from fleetune.store.stage_key import flatten_config
from flows.promoted_start import in_this_store, without_place

PLANS = "plans.json"
KINDS = {"model": "base", "data": "data", "plan": "plans", "metrics": "commits", "checkpoint": "weights"}
"""Kind of artifact -> the link that has its digest first."""
Digests = dict[str, str]


@record
class Link:
    """One link of the chain."""

    name: str
    digests: dict[str, str]
    """What -> digest, number or version."""
    chain: str
    """sha256 of the link before, of this one's name and of its digests."""


@record
class Receipt:
    """`receipt.json`."""

    run: str
    links: tuple[Link, ...]


def make_receipt(store: Store, run: RunRecord) -> Receipt:
    """The receipt of a run by what the store has. Refused: something is missing or damaged."""
    links: list[Link] = []
    for name, digests in LINKS.items():
        if found := digests(store, run):
            links.append(Link(name=name, digests=found, chain=_chain(links, name, found)))
    return Receipt(run=run.id, links=tuple(links))


def write_receipt(store: Store, run: RunRecord) -> None:
    """Write the receipt of a finished run."""
    store.runs.save_receipt(run.id, json_io.text(make_receipt(store, run)).encode())


def read_receipt(store: Store, run: str) -> Receipt | None:
    """The stored receipt of a run; None for one that is not done, or of an older version."""
    content = store.runs.receipt(run)
    return None if content is None else json_io.parse(Receipt, content, f"runs/{run}/receipt.json")


def check_run(
    store: Store, run: RunRecord, note: Callable[[str], None], hashing: Callable[[str], None] = lambda kind: None
) -> Receipt | None:
    """Hash every file of the artifacts that a run names and compute its chain anew; returns its receipt, None if it has
    none.

    Refused: the first link that breaks, and what of it is not what it was. note: receives what could not be checked;
    hashing: each kind of artifact before it is hashed.
    """
    kept = read_receipt(store, run.id)
    told = {link.name: link for link in kept.links} if kept else {}
    before: list[Link] = []
    for name, digests in LINKS.items():
        try:
            for kind, digest in named_artifacts(run):
                if KINDS.get(kind, "evaluation") == name:
                    hashing(kind)
                    store.verify(kind, digest)
            if kept is None:
                continue
            now = digests(store, run)
            _check_origin(name, store, run, note)
        except Refused as error:
            raise Refused(f"{_broken(run, name)}: {error}") from None
        was = told[name].digests if name in told else {}
        if odd := sorted(what for what in now.keys() | was.keys() if now.get(what) != was.get(what)):
            raise Refused(f"{_broken(run, name)}: {odd[0]} is {now.get(odd[0])}, and was {was.get(odd[0])}")
        if name in told:
            if kept.run != run.id or told[name].chain != _chain(before, name, was):
                raise Refused(f"{_broken(run, name)}: the receipt itself was changed")
            before.append(told[name])
    return kept


def named_artifacts(run: RunRecord) -> list[tuple[str, str]]:
    """Kind and digest of all that a run made, reused or was given, as an evaluation is what a past run trained."""
    pairs = (pair for stage in run.stages for pair in (*stage.inputs.items(), *stage.outputs.items()))
    return list(dict.fromkeys(pairs))


def _broken(run: RunRecord, link: str) -> str:
    return f"the chain of {run.id} breaks at {link}"


def _chain(links: list[Link], name: str, digests: Mapping[str, str]) -> str:
    return _sha256([links[-1].chain if links else "", name, dict(sorted(digests.items()))])


def _sha256(plain: Any) -> str:
    text = json.dumps(plain, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _artifacts(run: RunRecord) -> dict[str, str]:
    """kind -> digest of what the run made, reused or was given."""
    given = {kind: digest for stage in run.stages for kind, digest in stage.inputs.items()}
    return {**given, **run.outputs}


def _base(store: Store, run: RunRecord) -> Digests:
    """The files of the base as they were read, and what was drawn or derived before training."""
    model = _artifacts(run).get("model")
    if model is None:
        return {}
    from fleetune.models.base_files import BASE_FILES, BaseFiles  # brings numpy: only when a run has ended

    file = store.folder("model", model) / BASE_FILES
    return {"model": model, **(json_io.read(BaseFiles, file).files if file.exists() else {})}


def _data(store: Store, run: RunRecord) -> Digests:
    return {kind: digest for kind, digest in _artifacts(run).items() if kind == "data"}


def _code(store: Store, run: RunRecord) -> Digests:
    """The keys of the stages, which hash code, versions of packages, settings and inputs."""
    keys = {f"stage {stage.stage}": stage.key for stage in run.stages if stage.key}
    return {"version": run.code_version, "commit": f"{run.commit}{' with edits' if run.dirty else ''}", **keys}


def _config(store: Store, run: RunRecord) -> Digests:
    return {"config": _sha256(_recorded_config(store, run)), "seed": str(run.seed)}


def _recorded_config(store: Store, run: RunRecord) -> dict[str, Any]:
    """The config as the run's record has it: what this version fills in for a setting that an older one did not have
    is no change. Places in a store are named relative to it."""
    config = store.runs.plain_config(run.id)
    model, placed = config["model"], without_place(run.config).model
    if model.get("source"):
        model["source"] = placed.source
    if model.get("lora") and model["lora"].get("start") and placed.lora:
        model["lora"]["start"] = placed.lora.start
    return config


def _plans(store: Store, run: RunRecord) -> Digests:
    """The plan, and those that followed it while devices were lost or slow."""
    found, metrics = _artifacts(run), run.outputs.get("metrics")
    plans = {kind: digest for kind, digest in found.items() if kind == "plan"}
    if metrics is not None:
        files = {file.path: file.sha256 for file in store.manifest("metrics", metrics).files}
        plans |= {"later plans": files[PLANS]} if PLANS in files else {}
    return plans


def _commits(store: Store, run: RunRecord) -> Digests:
    """The rounds, as they were written."""
    metrics = run.outputs.get("metrics")
    if metrics is None:
        return {}
    file = store.folder("metrics", metrics) / "training.json"
    rounds = json_io.parse_plain(file.read_bytes(), str(file))["rounds"] if file.exists() else []
    return {"metrics": metrics, "rounds": str(len(rounds)), "log": _sha256(rounds)}


def _weights(store: Store, run: RunRecord) -> Digests:
    """The checkpoint, and the weight files in it that are handed over."""
    checkpoint = _artifacts(run).get("checkpoint")
    if checkpoint is None:
        return {}
    files = store.manifest("checkpoint", checkpoint).files
    exported = {one.path: one.sha256 for one in files if one.path.split("/")[0] in ("model", "adapter", "base")}
    return {"checkpoint": checkpoint, **{path: digest for path, digest in exported.items() if "safetensors" in path}}


def _evaluation(store: Store, run: RunRecord) -> Digests:
    """The scores and report, and every input of the evaluation."""
    stage = next((one for one in run.stages if "evaluation" in one.outputs), None)
    return {} if stage is None else {**stage.outputs, **{f"input {kind}": one for kind, one in stage.inputs.items()}}


def _check_origin(name: str, store: Store, run: RunRecord, note: Callable[[str], None]) -> None:
    """Refuse a base whose files were changed, a stage key that does not hash its record, and a config that the keys
    were not made of."""
    if name == "base" and (model := _artifacts(run).get("model")) is not None:
        from fleetune.models.base_files import check_base_files  # as above
        from fleetune.models.source import source_folder

        request = in_this_store(store, run.config).model
        try:
            source_folder(request)
        except Refused as error:
            note(f"the base itself cannot be compared with the receipt ({error})")
        else:
            check_base_files(request, store.folder("model", model), note)
    if name not in ("code", "config"):
        return
    plain = _recorded_config(store, run)
    config = {key: text for section, value in plain.items() for key, text in flatten_config(value, section).items()}
    for stage in run.stages:
        if stage.state != "done":
            continue
        known = store.key(stage.key)
        made_of = known.ingredients if known else {}
        if stage_key(made_of) != stage.key:
            raise Refused(f"the key of stage {stage.stage} is not that of its record in the store")
        settings = {key: text for key, text in made_of.items() if key.startswith("config.")}
        odd = [key for key, text in settings.items() if config.get(key.removeprefix("config."), text) != text]
        if name == "config" and odd:
            raise Refused(f"stage {stage.stage} ran with another {odd[0].removeprefix('config.')}")


LINKS: dict[str, Callable[[Store, RunRecord], Digests]] = {
    "base": _base,
    "data": _data,
    "code": _code,
    "config": _config,
    "plans": _plans,
    "commits": _commits,
    "weights": _weights,
    "evaluation": _evaluation,
}
"""Name of a link -> its digests by what the store has now; none if the run has not come so far."""
