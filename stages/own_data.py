"""The data that lie on the devices of a training."""

from fleetune.contracts.plan import Plan
from fleetune.contracts.run_config import ModelRequest
from fleetune.launching import Sites
from fleetune.training.local_data import prepare_own_data
from fleetune.training.task import DeviceData
from stages.entry_point import StageContext


def own_data(context: StageContext, sites: Sites, model: ModelRequest, plan: Plan) -> dict[str, DeviceData]:
    """Have the devices that `data.local` names prepare what lies on them; empty where it names none."""
    sources = context.task.config.get("data", {}).get("local", {})
    if not sources:
        return {}
    from fleetune.preparation.local_data import DeviceWork  # imports all readers of data, which take 0.1 s

    channel = context.channel
    work = DeviceWork(sites=sites, sources=sources, model=model, work=context.work, progress=channel.progress)
    return prepare_own_data(work, plan, context.input("data"), context.task.seed, channel.note)
