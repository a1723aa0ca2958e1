"""What workers need of a model is made once, where they are forked from."""

import json
from pathlib import Path

from fleetune.contracts import json_io
from fleetune.contracts.run_config import Lora
from fleetune.training.worker_state import described, warm_up
from tests.support.training.model_families import BY_NAME, data_request, model_request
from tests.support.training.runs import prepared


def test_a_worker_finds_what_was_made_before_it_was_forked(tmp_path: Path) -> None:
    """The request comes as JSON from the stage's task and as a record in the worker's; another one is another model."""
    family = BY_NAME["bert"]
    request = model_request(family, dropout=True, lora=Lora(targets=("query",)))
    ready = prepared(request, data_request(family, tmp_path), tmp_path)
    warm_up(str(ready.folders.model), json.dumps(json_io.dump(request)))
    found = described(ready.folders.model, request)
    assert {"whole", "state", "tied", "unit_items"} <= set(vars(found))
    assert found is described(ready.folders.model, request)
    assert described(ready.folders.model, model_request(family, dropout=True)) is not found
