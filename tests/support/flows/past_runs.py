"""Past runs of the demo, and the artifacts that they left."""

from pathlib import Path

from fleetune.contracts import json_io
from fleetune.data.prepared_data import ArrayInfo, DataInfo, SplitInfo
from fleetune.store import RunRecord, StageRecord, Store
from flows import configs
from stages.catalog import EVALUATE

DEMO = Path("configs/runs/demo.yaml")


def put(store: Store, kind: str, files: dict[str, str], data: str = "") -> str:
    """Store an artifact of these files, made of these data; its digest."""
    folder = store.local.parent / f"making-{kind}"
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return store.put(kind, folder, stage_key="0" * 64, inputs={"data": data} if data else {})


def put_data(
    store: Store,
    labels: tuple[str, ...] = ("no", "yes"),
    tokenizer: str = "t",
    size: int = 0,
    task: str = "sequence-classification",
    **more: str,
) -> str:
    """Store prepared data with these classes and this tokenizer; with images of that size if it is not 0. more: other
    files of the tokenizer, without their suffix .json."""
    shape = (5, 3, size, size) if size else (5, 64)
    array = ArrayInfo(name="pixel_values" if size else "input_ids", dtype="float32", shape=shape)
    info = DataInfo(
        task=task,
        labels=labels,
        splits=(SplitInfo(name="test", samples=5, arrays=(array,)),),
        source="reviews.csv",
        digest="d",
        seed=0,
    )
    files = {f"tokenizer/{name}.json": text for name, text in {"tokenizer": tokenizer, **more}.items()}
    return put(store, "data", {"data.json": json_io.text(info), **files})


def trained_run(store: Store, data: str = "", **left_out: str) -> RunRecord:
    """A past run of the demo with every input of `evaluate`; it was trained on these data."""
    data = data or put_data(store)
    outputs = {kind: put(store, kind, {"x": kind}, data) for kind in EVALUATE.inputs if kind != "data"} | {"data": data}
    kept = {kind: digest for kind, digest in outputs.items() if kind not in left_out}
    record = RunRecord(
        id="demo-20260102-120000-ab12",
        config=configs.load(DEMO),
        seed=1,
        code_version="1",
        started="2026",
        state="done",
        stages=(StageRecord(stage="train", key="0" * 64, state="done", outputs=kept),),
    )
    store.runs.save(record)
    return record
