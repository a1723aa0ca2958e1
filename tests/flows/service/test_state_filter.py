"""Lists of runs in the UI hold runs whose states have names of our own."""

import json
import re
from pathlib import Path
from typing import Any

import prefect
import pytest

from flows.service.ui_patches import ENDS, widened
from tests.support.flows.service.client import ServiceClient

ASSETS = Path(prefect.__file__).parent / "server" / "ui-v2" / "assets"


def default_filter() -> list[str]:
    """The names that the UI's filter "All except scheduled" lists, by the UI that is installed."""
    script = next(ASSETS.glob("flow-runs-list-*.js")).read_text()
    found = re.search(r"=\[(`Scheduled`(?:,`\w+`)+)\],\w+=\w+\.filter\(\w+=>\w+!==`Scheduled`\)", script)
    assert found, "the UI lists names of states"
    return [name for name in re.findall(r"`(\w+)`", found[1]) if name != "Scheduled"]


def asking(names: list[str]) -> dict[str, Any]:
    """The request of a deployment's page."""
    return {"flow_runs": {"operator": "and_", "state": {"operator": "or_", "name": {"any_": names}}}, "limit": 10}


def test_the_default_filter_means_all_states() -> None:
    """Bug: nights that ended as Promoted, NotBetter or NothingNew were missing on the deployment's page."""
    names = default_filter()
    assert set(names) > ENDS
    meant = json.loads(widened(json.dumps(asking(names)).encode()))
    assert meant["flow_runs"]["state"] == {"operator": "or_", "name": {"not_any_": ["Scheduled"]}}
    assert meant["limit"] == 10 and meant["flow_runs"]["operator"] == "and_"


@pytest.mark.parametrize("body", ["", "no JSON", "[]", '{"flow_runs": null}', '{"flow_runs": {"state": {"name": 3}}}'])
def test_any_other_request_stays(body: str) -> None:
    """A filter for some states, one of all states with the scheduled ones, and what is no filter are not changed."""
    for given in (body, *(json.dumps(asking(names)) for names in (["Failed"], [*ENDS, "Scheduled"], []))):
        assert widened(given.encode()) == given.encode()


def test_a_refused_run_is_on_the_deployments_page(service: ServiceClient) -> None:
    """The request of the deployment's page finds a run that was refused, and one for a state of Prefect's does not."""
    run = service.start(base="demo", changes=["training.rouns=3"])
    assert service.ended(run)["state_name"] == "Refused"
    for path in ("filter", "paginate"):
        lists = []
        for names in (default_filter(), ["Failed"]):
            request = asking(names)
            request["flow_runs"]["id"] = {"any_": [run]}  # others' runs may fill the first page
            lists.append(service.call("POST", f"/flow_runs/{path}", request))
        shown = [{one["id"] for one in (found if path == "filter" else found["results"])} for found in lists]
        assert run in shown[0] and run not in shown[1]
