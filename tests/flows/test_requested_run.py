"""Names of runs that were started in the UI."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.utilities.names import generate_slug

from fleetune.errors import Refused
from flows.requested_run import in_words_of_form, is_made_up, own_tags


def test_names_that_prefect_makes_up_are_recognized() -> None:
    """Every name that Prefect's server makes up, and those of the UI's form, give way to a title."""
    assert all(is_made_up(generate_slug(2)) for _ in range(500))
    assert is_made_up("Practical-Tang") and is_made_up("Angry-Abyssinian Guinea Pig")


@pytest.mark.parametrize("typed", ["my-run", "demo · asteroid · 40 rounds", "baseline", "nightly-2026", "lr-1e-4", ""])
def test_names_that_people_type_stay(typed: str) -> None:
    """A name that somebody typed is kept."""
    assert not is_made_up(typed)


def test_a_refusal_needs_no_library_of_a_run() -> None:
    """The process of a flow run that is refused imports Prefect and the contracts, and not what computes: a refusal
    comes within 3 s, most of which are Prefect's."""
    heavy = "('torch', 'transformers', 'scipy', 'numba', 'numpy', 'zmq', 'fleetune.planning', 'fleetune.discovery')"
    program = f"import sys, flows.finetune; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "[]\n"


def test_a_copy_by_hand_is_no_scheduled_run() -> None:
    """Prefect copies all tags of a run, also the one that says that a schedule made it; it stays with those alone."""
    for scheduled, tags in ((True, ["fleetune", "auto-scheduled"]), (False, ["fleetune"])):
        run: Any = SimpleNamespace(tags=["fleetune", "auto-scheduled"], auto_scheduled=scheduled)
        assert own_tags(run) == tags


def test_the_form_has_fields_and_no_options() -> None:
    """Bug: whoever filled in a form was told about --from, which it calls start_from."""
    told = in_words_of_form(Refused("stage plan has to run first; give --from plan instead of --from train, or --only"))
    assert type(told) is Refused
    assert str(told) == "stage plan has to run first; give start_from plan instead of start_from train, or only"
