"""`fleetune cite` prints the BibTeX entries of the papers that a run file uses."""

from pathlib import Path

import pytest

from fleetune.planning import strategies
from tests.support.cli.calls import Call, files
from tests.support.planning.bibtex import parsed

DEMO = Path(__file__).parents[2] / "configs" / "runs" / "demo.yaml"


def test_the_demo_cites_asteroid(call: Call) -> None:
    """The output is one BibTeX entry that parses, and nothing is written."""
    result = call("cite", DEMO)
    assert (result.exit_code, result.stderr) == (0, "")
    assert parsed(result.stdout)["ye2024asteroid"]["year"] == "2024"


@pytest.mark.parametrize("strategy", sorted(strategies()))
def test_every_strategy_can_be_cited(call: Call, strategy: str) -> None:
    """A run file of any strategy prints at least that strategy's entries."""
    result = call("cite", DEMO, "--set", f"strategy={{name: {strategy}}}")
    assert result.exit_code == 0
    assert set(parsed(strategies()[strategy].citation)) <= set(parsed(result.stdout))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["none.yaml"], "none.yaml: cannot be read (No such file or directory); give an existing YAML file"),
        ([DEMO, "--set", "strategy.name=magic"], "strategy.name is 'magic'; allowed are asteroid, d2ft, dp"),
        ([DEMO, "--set", "strategy.options={method: dappel}"], "method is 'dappel'; allowed are search, asteroid"),
    ],
)
def test_a_bad_config_is_refused(call: Call, root: Path, arguments: list[str | Path], sentence: str) -> None:
    """One sentence on stderr names the value and what is allowed, with exit code 64 and no output."""
    result = call("cite", *arguments)
    assert result.exit_code == 64 and result.stdout == ""
    assert sentence in " ".join(result.stderr.split()) and "Traceback" not in result.stderr
    assert not files(root.parent)
