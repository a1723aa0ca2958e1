"""Samples that lie on their devices."""

import json
from collections.abc import Mapping
from pathlib import Path

from fleetune.contracts.input_spec import InputSpec
from fleetune.contracts.run_config import DataRequest
from fleetune.data.prepared_data import PreparedData
from fleetune.data.writer import prepare_data
from fleetune.models.model_inputs import input_spec
from fleetune.training.task import DeviceData
from tests.support.training.model_families import TEXT
from tests.support.training.planted import SECRET
from tests.support.training.runs import Prepared

WORDS = ("alpha", "beta", "gamma")


def own_data(ready: Prepared, folder: Path, counts: Mapping[str, int]) -> dict[str, DeviceData]:
    """Prepare that many training samples for each device, in a folder of its own; texts hold SECRET and the device."""
    found = {}
    for number, (device, count) in enumerate(counts.items()):
        place = folder / "devices" / device
        place.mkdir(parents=True)
        if ready.model.task == TEXT:
            rows = [{"text": f"{SECRET}{device}{k}", "label": WORDS[k * k % 3]} for k in range(count + 3)]
            (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            request = DataRequest(source=str(place / "rows.jsonl"), max_length=24, test_fraction=2.9 / (count + 3))
        else:
            request = DataRequest(source="digits", train_samples=count, test_samples=2)
        spec: InputSpec = input_spec(ready.model)
        prepare_data(request, spec, place / "data", 11 + number)
        found[device] = DeviceData(folder=place / "data", samples=PreparedData(place / "data").size("train"))
    return found
