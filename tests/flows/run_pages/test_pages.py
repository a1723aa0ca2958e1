"""The overview and the history of runs, and the prediction of a dry run."""

import base64
import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from markdown_it import MarkdownIt

from fleetune.contracts import json_io
from fleetune.contracts.metrics import RoundMetrics, TimelineRow
from fleetune.contracts.run_config import PromotionRequest
from fleetune.linux import process_identity
from fleetune.store import PromotionDecision, StageRecord, Store
from flows.run_pages.difference import prediction
from flows.run_pages.overview import history, overview
from flows.run_pages.page import MOST_PAGE_BYTES, Page, StoreLinks, links_of, plain
from flows.run_pages.publication import base_of, key_of
from flows.service_files import ServiceFiles, ServiceRecord
from tests.support.drawing.contents import content
from tests.support.flows.run_pages.runs import config, failed, kept

LINKS = StoreLinks(root="/somewhere/runs", pages="http://127.0.0.1:4321/store")
PATHS = StoreLinks(root="/somewhere/runs")
PICTURE = re.compile(r"!\[[^\]]*\]\(data:image/svg\+xml;base64,([^)]+)\)")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store."""
    return Store(tmp_path / "runs")


def shown(page: Page) -> str:
    """The page as HTML, without its pictures."""
    return MarkdownIt("commonmark", {"html": True}).enable("table").render(PICTURE.sub("(picture)", page.markdown))


def test_the_overview_tells_a_run_beside_the_pipeline(store: Store) -> None:
    """Its first line says that it is an evaluation, and nothing of the kind of a run of the whole pipeline."""
    run = kept(store, "by.hand-1")
    beside = replace(run, kind="evaluation")
    assert "(an evaluation of an earlier run): **done**" in overview(store, beside, None, LINKS).markdown
    assert "evaluation of an earlier run" not in overview(store, run, None, LINKS).markdown


def test_the_overview_of_an_evaluated_run(store: Store) -> None:
    """It has the result in a line, pictures that are SVG files of their own, each stage's reason without a doubled
    word, and links to every file."""
    run = kept(store, "by.hand-1")
    page = overview(store, run, None, LINKS)
    assert re.fullmatch(r"accuracy 0\.860 \(\+0\.76\), [\d.]+ s a round", page.description)
    pictures = [base64.b64decode(found).decode() for found in PICTURE.findall(page.markdown)]
    assert len(pictures) == 4, "forecast, measured, loss, fleet"
    for picture in pictures:
        drawn = ElementTree.fromstring(picture)
        assert float(drawn.attrib["width"]) > 500 and float(drawn.attrib["height"]) > 50
        assert "<title>" not in picture, "an image shows no tooltips"
    text = shown(page)
    assert "training.rounds changed" in text and "same key as by.hand-0" in text
    assert "ran: " not in text and "reused: " not in text
    digest = run.outputs["evaluation"]
    assert f'href="{LINKS.pages}/artifacts/evaluation/{digest}/report.html"' in text
    assert f'href="{LINKS.pages}/runs/by.hand-1"' in text
    assert "60 of 60 rounds" in text and "+0.76" in text
    assert "on 400 samples</th>" in text, "an older version did not count those that were trained on"


def test_text_of_others_is_shown_as_it_is(store: Store) -> None:
    """An error, or an event, with markup and table signs changes neither the page nor its tables."""
    hostile = "x | y <script>a</script> [link](http://evil.example) ![i](http://evil.example/i) `c` *b*\n\n# head"
    run = failed(kept(store, "by.hand-1"), hostile)
    page = overview(store, run, None, LINKS)
    text = shown(page)
    assert "<script>" not in text and "<b>pulled" not in text and 'href="http://evil' not in text and "<img" not in text
    assert text.count("x | y &lt;script&gt;") == 2, "in its stage's row and as the run's error"
    assert page.description.startswith("failed at evaluate")
    assert "fleetune rerun by.hand-1" in page.markdown and "--set" not in page.markdown, "it goes on"
    refused = overview(store, replace(run, exit_code=64), None, LINKS).markdown
    assert "rerun by.hand-1 --set KEY=VALUE" in refused, "it would be refused again"


def test_without_a_service_there_are_paths(store: Store) -> None:
    """Links need a service: without one the page names files by their path."""
    run = kept(store, "by.hand-1")
    assert links_of(store).pages == ""
    text = shown(overview(store, run, None, PATHS))
    assert "<a " not in text
    assert f"<code>/somewhere/runs/artifacts/evaluation/{run.outputs['evaluation']}/report.html</code>" in text


def test_links_survive_the_next_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: the links of yesterday's pages were dead after `up` with another port. They name no port, and a path that
    stays; pages on another server have the whole address. A service without a password tells no key.
    """
    store = Store(tmp_path / "runs")
    files = ServiceFiles(store.local)
    files.folder.mkdir(parents=True)
    found = list[str]()
    with files.lock():
        for port, authenticated in ((4200, False), (4200, True), (4950, True)):
            service = ServiceRecord(
                address=f"http://127.0.0.1:{port}", root="runs", keeper=os.getpid(), started="",
                authenticated=authenticated, version="1", identity=process_identity(os.getpid()),
            )  # fmt: skip
            files.write(service)
            monkeypatch.setenv("PREFECT_API_URL", service.api)
            found.append(links_of(store).pages)
        without, *others = found
        (pages,) = {*others}
        assert re.fullmatch(r"/store/[0-9a-f]{32}", pages) and without == "/store/open"
        monkeypatch.setenv("PREFECT_API_URL", "http://prefect.example/api")
        assert links_of(store).pages == f"http://127.0.0.1:4950{pages}"


def test_a_run_until_its_plan_has_a_forecast(store: Store) -> None:
    """An unfinished run shows what it has."""
    page = overview(store, kept(store, "by.hand-1", until="plan"), None, LINKS)
    assert re.fullmatch(r"forecast [\d.]+ s a round", page.description)
    assert len(PICTURE.findall(page.markdown)) == 2 and "## Loss" not in page.markdown


def test_a_training_that_runs_shows_its_loss_so_far(store: Store) -> None:
    """Bug: while a model was trained, for hours, its page showed nothing of it. The committed rounds are drawn; a line
    that is half written is none, and a log that cannot be read leaves the rest of the page."""
    run = kept(store, "by.hand-1", until="plan", state="running")
    stage = StageRecord(stage="train", key="ab" * 16, state="running", how="ran", why="ran: never run before")
    training = replace(run, stages=(*run.stages, stage))
    assert "## Loss" not in overview(store, training, None, PATHS).markdown, "no round yet"
    log = store.work(stage.key) / "commits.jsonl"
    rounds = [
        RoundMetrics(round=number, loss=2.5 - number, gradient_norm=None, learning_rate=0.1, round_s=1.0)
        for number in range(2)
    ]
    lines = [json.dumps(json_io.dump(one)) for one in rounds]
    log.write_text("\n".join([*lines, lines[1][:20]]))
    page = overview(store, training, None, PATHS).markdown
    assert "## Loss, so far" in page and "From 2.5 to 1.5 in 2 rounds" in page and "Round **2** of training" in page
    assert len(PICTURE.findall(page)) == 3, "forecast, loss, fleet"
    log.write_text("nonsense\n")
    assert "## A round, forecast" in overview(store, training, None, PATHS).markdown


def test_a_damaged_artifact_leaves_the_rest(store: Store) -> None:
    """Files that are gone or damaged take their part from the page, and no more."""
    run = kept(store, "by.hand-1")
    shutil.rmtree(store.folder("plan", run.outputs["plan"]))
    (store.folder("events", run.outputs["events"]) / "events.json").write_text("{")
    page = overview(store, run, None, LINKS)
    assert page.description.startswith("accuracy 0.860") and "## Loss" in page.markdown
    assert "## Events" not in page.markdown


def test_a_huge_plan_makes_a_small_page(store: Store) -> None:
    """Artifacts of megabytes are refused by the server: a plan of 20,000 bars is left to the report."""
    made = content()
    assert made.training is not None
    rows = tuple(
        TimelineRow(device=device, lane="main", action=f"main/0F{k}", start_s=k * 1.0, end_s=k + 0.9)
        for device in ("a", "a>b")
        for k in range(10_000)
    )
    many = replace(made, forecast=replace(made.forecast, rows=rows), training=replace(made.training, timeline=rows))
    page = overview(store, kept(store, "by.hand-1", made=many), None, LINKS)
    assert len(page.markdown.encode()) <= MOST_PAGE_BYTES
    assert page.markdown.count("the report draws them") == 2 and "## Loss" in page.markdown


def test_many_transfers_are_left_out_before_devices(store: Store) -> None:
    """Where transfers make a picture too large, devices are still drawn."""
    made = content()
    transfers = tuple(
        TimelineRow(device="a>b", lane="main", action="main/0F0", start_s=k * 1e-4, end_s=(k + 1) * 1e-4, bytes=9)
        for k in range(2000)
    )
    many = replace(made, forecast=replace(made.forecast, rows=(*made.forecast.rows, *transfers)))
    page = overview(store, kept(store, "by.hand-1", until="plan", made=many), None, LINKS)
    forecast = base64.b64decode(PICTURE.findall(page.markdown)[0]).decode()
    assert ">a<" in forecast and "a&gt;b" not in forecast


def test_the_difference_from_the_base(store: Store) -> None:
    """A run that was started from another one shows which settings and scores differ, and which stages are equal."""
    base = kept(store, "by.hand-1", config=config(rounds=20))
    run = kept(store, "by.hand-2", started="2026-01-02T13:00:00+00:00")
    assert base_of(store, run, "") == base and base_of(store, run, "by.hand-1") == base
    assert base_of(store, base, "") is None
    text = shown(overview(store, run, base, LINKS))
    row = re.search(r"<td>training\.rounds</td>\s*<td>(\d+)</td>\s*<td>(\d+)</td>", text)
    assert row is not None and row.groups() == ("20", "60")
    assert "the same results: discover, plan, train, monitor, evaluate" in text
    assert re.search(r"<td>a round</td>\s*<td>[\d.]+ s</td>", text) and "<td>accuracy</td>" in text


def test_the_history_of_a_config(store: Store) -> None:
    """A row per run, newest first, each with what changed against the one before it."""
    kept(store, "by.hand-1", config=config(rounds=20))
    kept(store, "by.hand-2", started="2026-01-02T13:00:00+00:00", until="plan", state="failed")
    run = kept(store, "by.hand-3", started="2026-01-02T14:00:00+00:00", state="running")
    page = history(store, replace(run, state="done"), LINKS)
    rows = re.findall(r"<tr>\s*<td>(.*?)</tr>", shown(page), re.DOTALL)
    assert [re.findall(r"by\.hand-\d</a>", row)[0][:9] for row in rows] == ["by.hand-3", "by.hand-2", "by.hand-1"]
    assert "nothing" in rows[0] and "accuracy 0.860 (+0.76)" in rows[0] and "done" in rows[0]
    assert "training.rounds 20 → 60" in rows[1] and "forecast" in rows[1] and "failed" in rows[1]
    assert page.description == "3 runs: 2 done, 1 failed"
    kept(store, "by.hand-0", started="2026-01-02T13:30:00+00:00", kind="comparison", config=config(rounds=7))
    rows = re.findall(r"<tr>\s*<td>(.*?)</tr>", shown(history(store, run, LINKS)), re.DOTALL)
    assert "comparison" in rows[1] and "nothing" in rows[0], "a run beside the pipeline is no run before another"


def test_a_promoted_model_says_so(store: Store) -> None:
    """The pages have the decision about a run's model; a damaged record of decisions takes only that from them."""
    run = kept(store, "by.hand-1", config=replace(config(), promote=PromotionRequest(score="loss")))
    assert "romoted**" not in overview(store, run, None, LINKS).markdown
    digest = run.outputs["checkpoint"]
    store.promotions.append(
        PromotionDecision(
            name="by.hand",
            run=run.id,
            promoted=True,
            checkpoint=digest,
            origin="0" * 64,
            data=digest,
            scores=(),
            why="loss 2.31 before and 0.41 after",
            decided="2026-01-02T12:00:05+00:00",
        )
    )
    assert "**Promoted**: loss 2.31 before" in overview(store, run, None, LINKS).markdown
    assert "done, promoted" in history(store, run, LINKS).markdown
    next((store.local / "promotions").rglob("*.json")).write_text("{")
    assert "romoted**" not in overview(store, run, None, LINKS).markdown
    assert "| done |" in history(store, run, LINKS).markdown


def test_the_prediction_of_a_dry_run(store: Store) -> None:
    """It says what would run, why, and what has changed."""
    base = kept(store, "by.hand-1", config=config(rounds=20))
    planned = replace(kept(store, "by.hand-2"), state="planned")
    page = prediction(planned, base, LINKS)
    assert page.description == "would run plan, train, monitor, evaluate and reuse discover"
    text = shown(page)
    assert "be reused" in text and "training.rounds changed" in text and "<td>20</td>" in text


def test_keys_of_artifacts() -> None:
    """Prefect takes small letters, digits and dashes only, whatever a config is called."""
    assert key_of("My.Run_2-overview") == "my-run-2-overview"


def test_plain_text_is_one_line() -> None:
    """Text is cut where it is very long."""
    assert plain("a\nb  c") == "a b c" and len(plain("x" * 5000)) == 300
