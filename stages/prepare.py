"""prepare: model, data -> model (graph of units, configuration, initial weights), data (arrays to train on)."""

from fleetune import preparation
from fleetune.contracts import json_io
from fleetune.contracts.run_config import DataRequest, ModelRequest
from stages.entry_point import StageContext, main


def prepare(context: StageContext) -> None:
    """Prepare the data, cut the model into units, and draw the weights that training starts from; needs no device."""
    config = context.task.config
    preparation.prepare(
        preparation.PreparationTask(
            model=json_io.load(ModelRequest, config["model"], "model"),
            data=json_io.load(DataRequest, config["data"], "data"),
            data_digest=context.task.content.get("data"),
            seed=context.task.seed,
            model_folder=context.output("model"),
            data_folder=context.output("data"),
            progress=context.channel.progress,
            note=context.channel.note,
        )
    )


if __name__ == "__main__":
    main(prepare)
