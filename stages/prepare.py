"""prepare: model, data -> model (graph of units, configuration, initial weights), data (arrays to train on)."""

import json

from fleetune.contracts import json_io
from fleetune.contracts.fleet_request import FleetRequest
from fleetune.contracts.run_config import DataRequest, ModelRequest
from fleetune.contracts.task import LOCAL_DATA
from fleetune.data.local_data import LocalSurvey
from fleetune.errors import TryAgain
from fleetune.preparation.local_data import DeviceWork, owners_sites, survey_devices
from fleetune.preparation.prepare import PreparationTask
from fleetune.preparation.prepare import prepare as prepare_artifacts
from stages.entry_point import StageContext, main


def prepare(context: StageContext) -> None:
    """Prepare the data, cut the model into units, and draw the weights that training starts from.

    It needs no device but those with data of their own, which report the names of their labels.
    """
    config = context.task.config
    model = json_io.load(ModelRequest, config["model"], "model")
    data = json_io.load(DataRequest, config["data"], "data")
    prepare_artifacts(
        PreparationTask(
            model=model,
            data=data,
            data_digest=context.task.content.get("data"),
            local=_surveys(context, model, data) if data.local else {},
            seed=context.task.seed,
            model_folder=context.output("model"),
            data_folder=context.output("data"),
            progress=context.channel.progress,
            note=context.channel.note,
        )
    )


def _surveys(context: StageContext, model: ModelRequest, data: DataRequest) -> dict[str, LocalSurvey]:
    """Have devices survey their data. TryAgain: data that were changed since the flow asked for their digests."""
    fleet = json_io.load(FleetRequest, context.task.config["fleet"], "fleet")
    with owners_sites(fleet, data) as sites:
        work = DeviceWork(
            sites=sites, sources=data.local, model=model, work=context.work, progress=context.channel.progress
        )
        found = survey_devices(work, data)
    known = json.loads(context.task.content.get(LOCAL_DATA, "{}"))
    for device, survey in found.items():
        if known.get(device, survey.digest) != survey.digest:
            raise TryAgain(f"data.local.{device}: its data were changed while the run began; start the run again")
    return found


if __name__ == "__main__":
    main(prepare)
