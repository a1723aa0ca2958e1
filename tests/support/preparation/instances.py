"""Models and data prepared in folders of a test, as the prepare stage does it."""

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from fleetune.contracts import json_io
from fleetune.contracts.run_config import DataRequest, ModelRequest
from fleetune.models.graph import Graph, parse_graph
from fleetune.preparation.prepare import PreparationTask, write_artifacts
from tests.support.made_once import made_once


@dataclass(frozen=True, kw_only=True)
class PreparedFolders:
    """The folders that preparation writes."""

    model: Path
    data: Path

    @classmethod
    def below(cls, folder: Path) -> "PreparedFolders":
        """Both folders below one; a test's profile lies beside the graph."""
        return cls(model=folder / "profile", data=folder / "data")


def preparation_task(folder: Path, model: ModelRequest, data: DataRequest, seed: int = 3) -> PreparationTask:
    """The input of the prepare stage that writes below `folder`."""
    folders = PreparedFolders.below(folder)
    return PreparationTask(model=model, data=data, seed=seed, model_folder=folders.model, data_folder=folders.data)


def prepared_below(
    folder: Path, model: ModelRequest, data: DataRequest, seed: int = 3
) -> tuple[Graph, PreparedFolders]:
    """Prepare without comparing; returns the graph and the folders."""
    graph, _ = write_artifacts(preparation_task(folder, model, data, seed))
    return graph, PreparedFolders.below(folder)


def prepared_once(folder: Path, model: ModelRequest, data: DataRequest, seed: int = 3) -> tuple[Graph, PreparedFolders]:
    """As `prepared_below`; what this run has prepared from the same requests and the same bytes is copied."""
    key = _content(model, data, seed)
    made = made_once(f"prepared {key}", lambda making: prepared_below(making, model, data, seed))
    shutil.copytree(made, folder, dirs_exist_ok=True)
    folders = PreparedFolders.below(folder)
    return parse_graph((folders.model / "graph.json").read_bytes(), "graph.json"), folders


def _content(model: ModelRequest, data: DataRequest, seed: int) -> str:
    """Return a digest of all that preparation reads; files of a request count by their bytes."""
    requests = [json_io.dump(model), json_io.dump(data)]
    digest = hashlib.sha256(str(seed).encode())
    for request in requests:
        for name, value in request.items():
            if isinstance(value, str) and Path(value).exists():
                for file in sorted(path for path in (Path(value), *Path(value).rglob("*")) if path.is_file()):
                    digest.update(f"{name} {file.relative_to(value)}\0".encode() + file.read_bytes())
            else:
                digest.update(f"{name} {value!r}\0".encode())
    return digest.hexdigest()
