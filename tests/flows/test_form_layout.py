"""The forms of Prefect's UI fit a screen: fields in columns, one line of help each."""

from pathlib import Path
from typing import Any

import pytest
from prefect import __ui_v2_static_path__
from prefect.utilities.callables import parameter_schema

from flows.compare import compare
from flows.evaluate import evaluate
from flows.finetune import finetune, profile_fleet
from flows.service.ui_patches import PAGE, STYLE, put_style

LINE = 52
"""Characters of help that fit a column of 22 rem on one line."""
FLOWS = (finetune, compare, profile_fleet, evaluate)


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.name)
def test_every_field_has_one_line_of_help(flow: Any) -> None:
    """A field without help leaves people guessing; help that wraps makes the form longer than a screen."""
    helps = {name: field.get("description", "") for name, field in parameter_schema(flow).properties.items()}
    assert {name: text for name, text in helps.items() if not 0 < len(text) <= LINE} == {}


@pytest.fixture
def ui(tmp_path: Path) -> Path:
    """A copy of the start page of Prefect's UI, as its server keeps one."""
    page = tmp_path / PAGE
    page.parent.mkdir()
    page.write_bytes((Path(str(__ui_v2_static_path__)) / PAGE.name).read_bytes())
    return tmp_path


def test_the_style_sheet_is_put_in_once(ui: Path) -> None:
    """A service that starts for the hundredth time has one style sheet, today's, and the page is else untouched."""
    before = (ui / PAGE).read_text()
    put_style(ui)
    put_style(ui)
    styled = (ui / PAGE).read_text()
    assert styled.count(STYLE) == 1 and styled.replace(STYLE, "") == before
    (ui / PAGE).write_text(styled.replace(STYLE, '<style id="fleetune">of an\nolder release</style>'))
    put_style(ui)
    assert (ui / PAGE).read_text() == styled


def test_a_ui_without_its_page_is_left_alone(tmp_path: Path) -> None:
    """A UI that is missing, or that a later release builds in another way, does not keep the service from starting."""
    put_style(tmp_path / "none")
    page = tmp_path / PAGE
    page.parent.mkdir()
    page.write_text("<html></html>")
    put_style(tmp_path)
    assert page.read_text() == "<html></html>"
