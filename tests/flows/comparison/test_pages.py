"""A comparison for people: the answer in a sentence, Markdown that renders, and a page that runs nothing."""

import base64
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from fleetune.errors import Refused
from fleetune.store import Store
from flows.comparison import archive
from flows.comparison.pages import charts, html_page, markdown, memory_table, notes, strategy_table, verdict
from flows.comparison.record import ComparedStrategy, Comparison
from flows.run_pages.page import StoreLinks
from tests.support.clock import fleets
from tests.support.flows.comparison.comparisons import compared
from tests.support.flows.comparison.stand_in import StandIn


@pytest.fixture
def planned(store: Store, pipeline: StandIn) -> Comparison:
    """Two strategies by the clock."""
    return compared(pipeline, "single", "dp")


@pytest.fixture
def trained(store: Store, pipeline: StandIn) -> Comparison:
    """Two strategies, trained; the slower one needs fewer rounds."""
    pipeline.losses = {"single": [1.0] * 6, "dp": [3.0] * 50 + [1.0] * 5}
    return compared(pipeline, "single", "dp", train=True)


def test_the_answer_is_a_sentence(planned: Comparison, trained: Comparison) -> None:
    """By the clock the fastest is told with its lead; after training also the first at the target loss."""
    assert verdict(planned) == "By the clock dp is the fastest (2 s a round, 2.00 times as fast as single)"
    said = verdict(trained)
    assert "Measured, dp is the fastest (2.5 s a round" in said
    assert said.endswith("single was the first at loss 1, after 25 s"), "though its rounds are slower"


def test_differences_within_noise_name_no_winner(trained: Comparison) -> None:
    """5 and 2.5 s a round are one and the same where half of each strategy's rounds lie 60 % around; the first at the
    target loss is then none either, where they reached it in times as close."""

    def noisy(row: ComparedStrategy, target_s: float) -> ComparedStrategy:
        assert row.measured is not None
        return replace(row, measured=replace(row.measured, noise=0.6), target_s=target_s)

    found = replace(trained, strategies=tuple(map(noisy, trained.strategies, (25.0, 50.0))))
    said = verdict(found)
    assert "Measured, single and dp are equally fast, as far as their rounds tell (2.5 s a round)" in said
    assert said.endswith("single and dp were the first at loss 1, after 25 s")
    assert said.startswith("By the clock dp is the fastest")
    apart = replace(trained, strategies=tuple(map(noisy, trained.strategies, (25.0, 60.0))))
    assert verdict(apart).endswith("single was the first at loss 1, after 25 s"), "2.4 times as late"


def test_a_fast_plan_that_cannot_be_trained(store: Store, pipeline: StandIn) -> None:
    """The fastest by the clock may be a plan that nobody can train here: the fastest of the others is told too."""
    lanes = (*fleets.PLAN.lanes, replace(fleets.PLAN.lanes[0], name="second"))
    pipeline.plans = {"fusionllm": replace(fleets.PLAN, lanes=lanes)}
    found = compared(pipeline, "single", "fusionllm", "dp")
    assert "fusionllm is the fastest" in verdict(found)
    assert "of those that can be trained here, dp is the fastest" in verdict(found)
    assert [note for note in notes(found) if "2 lanes" in note] == [
        "fusionllm: it cannot be trained yet: its plan has 2 lanes that nothing brings together (a collector, or "
        "average_every_rounds)"
    ]


def test_the_table(planned: Comparison, trained: Comparison) -> None:
    """A row per strategy; measured columns only once something is measured; memory by device with its limit."""
    assert strategy_table(planned).rows[1][:3] == ("dp", "2 s", "6")
    assert strategy_table(planned).rows[1][-1] == "b 90 %", "the device whose memory is fullest"
    assert strategy_table(trained).rows[0][-4:] == ("5 s", "2.2 kB", "25 s", "0.1 → 0.7")
    assert strategy_table(trained).headings[-1] == "accuracy"
    assert memory_table(trained).rows[0] == ("a", "1 GB", "400 MB, measured 500 MB", "400 MB, measured 500 MB")
    assert memory_table(planned).rows[2] == ("c", "1 GB", "not used", "not used")


def test_markdown_has_whole_tables_and_images(trained: Comparison) -> None:
    """Every line of a table has the same number of cells, and each image is a well-formed SVG."""
    broken = replace(trained.strategies[0], why="a | b\nc")
    links = StoreLinks(root="store", pages="http://127.0.0.1:4200/store")
    text = markdown(replace(trained, strategies=(broken, *trained.strategies[1:])), links).markdown
    tables = [part.splitlines() for part in text.split("\n\n") if part.startswith("| ")]
    assert len(tables) == 2
    assert all(len({len(re.split(r"(?<!\\)\|", line)) for line in table}) == 1 for table in tables)
    images = re.findall(r"!\[[^]]+\]\(data:image/svg\+xml;base64,([^)]+)\)", text)
    assert len(images) == 2, "rounds, and loss over seconds"
    assert all(ElementTree.fromstring(base64.b64decode(image)).tag.endswith("svg") for image in images)
    assert "a \\| b c" in text and f"{links.pages}/comparisons/{trained.id}/comparison.html" in text


def test_charts_show_every_strategy(planned: Comparison, trained: Comparison) -> None:
    """Before training there is one chart; after it, also a curve for each strategy."""
    assert len(charts(planned)) == 1 and all(name in charts(planned)[0] for name in ("single", "dp"))
    assert charts(trained)[1].count('class="curve"') == 2


def test_the_page_is_of_one_piece(store: Store, trained: Comparison) -> None:
    """It needs no other file, runs no script, and a reason that looks like markup is text."""
    evil = replace(trained.strategies[0], why="<script>alert(1)</script>")
    page = html_page(replace(trained, strategies=(evil, *trained.strategies[1:])))
    assert "<script" not in page and "&lt;script&gt;" in page
    assert re.findall(r'(?:src|href)="(?!data:|\.\./\.\./runs/)', page) == []
    assert archive.read(store, trained.id, "comparison.html").decode() == html_page(trained)


def test_only_files_of_comparisons_are_read(store: Store, planned: Comparison) -> None:
    """Neither another file, nor a name that leads out of the folder, is answered."""
    for comparison, file in ((planned.id, "run.json"), ("..", "comparison.json"), ("nothing", "comparison.json")):
        with pytest.raises(Refused, match=planned.id):
            archive.read(store, comparison, file)
    store.storage.write(f"comparisons/{planned.id}/comparison.json", b"{")
    assert archive.every(store) == (), "a damaged one hides no others"
