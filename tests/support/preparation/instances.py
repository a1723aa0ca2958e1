"""Models and data prepared in folders of a test, as the prepare stage does it."""

from dataclasses import dataclass
from pathlib import Path

from fleetune.contracts.run_config import DataRequest, ModelRequest
from fleetune.models.graph import Graph
from fleetune.preparation.prepare import PreparationTask, write_artifacts


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
