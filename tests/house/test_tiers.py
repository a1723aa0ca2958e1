"""Which tests every change runs: the rules name what exists, and a change brings back what imports it."""

from pathlib import Path

import pytest

from tests.support.left_out import LeftOut
from tests.support.tiers import ROOT, Rule, Tiers, imported, needs, read_rules
from tests.support.whole_run import WholeRun, part_of

RULE = Rule(tests="tests/far", why="slow", keeps=("tests/far/test_a.py::test_near",), covers=("flows/service",))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Two test files of the second tier, of which one imports a helper, and by it a module of the product."""
    files = {
        "tests/far/conftest.py": "import pytest\n",
        "tests/far/test_a.py": "from tests.support import helper\n",
        "tests/far/test_b.py": "from fleetune.clock import costs\n",
        "tests/support/helper.py": "import fleetune.links.message\n",
        "fleetune/links/message.py": "from fleetune.links import buffer\n",
        "fleetune/links/buffer.py": "",
        "fleetune/clock/costs.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def left_out(project: Path, *changed: str) -> list[str]:
    """The tests that are left to `make test-all` when these files have changed."""
    tiers = Tiers((RULE,), changed, project)
    tests = ("tests/far/test_a.py::test_near[1]", "tests/far/test_a.py::test_far", "tests/far/test_b.py::test_far")
    return [test.removeprefix("tests/far/") for test in tests if tiers.left_out(test)]


def test_what_a_rule_lists_is_left_out_but_what_it_keeps(project: Path) -> None:
    """Also with its parameters, and whatever else has changed."""
    assert left_out(project) == left_out(project, "README.md") == ["test_a.py::test_far", "test_b.py::test_far"]


@pytest.mark.parametrize(
    ("changed", "left"),
    [
        ("tests/far/test_b.py", ["test_a.py::test_far"]),
        ("fleetune/clock/costs.py", ["test_a.py::test_far"]),
        ("tests/support/helper.py", ["test_b.py::test_far"]),
        ("fleetune/links/message.py", ["test_b.py::test_far"]),
        ("fleetune/links/buffer.py", ["test_a.py::test_far", "test_b.py::test_far"]),
        ("tests/far/conftest.py", []),
        ("flows/service/keeper.py", []),
    ],
)
def test_a_change_brings_back_what_imports_it(project: Path, changed: str, left: list[str]) -> None:
    """A test file comes back with itself, its conftest, its helpers and all that these import, the modules of the
    product that one of these names, and what its rule covers; not with what such a module imports in turn."""
    assert left_out(project, changed) == left


def test_a_rule_may_be_of_slow_tests(project: Path) -> None:
    """The first rule that names a test counts; what it keeps is run, slow or not."""
    slow = ("tests/far/test_a.py::test_near[1]", "tests/near/test_c.py::test_slow")
    tiers = Tiers((RULE, Rule(tests="tests", why="slow", slow=True)), (), project, slow)
    (project / "tests/near").mkdir()
    (project / "tests/near/test_c.py").write_text("")
    assert tiers.left_out("tests/near/test_c.py::test_slow") is tiers.rules[1]
    assert tiers.left_out("tests/near/test_c.py::test_fast") is None
    assert tiers.left_out("tests/far/test_a.py::test_near[1]") is None
    assert tiers.left_out("tests/far/test_a.py::test_far") is tiers.rules[0]


def test_the_rules_name_what_exists() -> None:
    """Folders, files and functions; a rule that matches nothing would leave its tests out of nothing."""
    for rule in read_rules():
        assert all((ROOT / path).exists() for path in (rule.tests, *rule.covers)), rule
        for kept in rule.keeps:
            file, _, name = kept.partition("::")
            assert kept.startswith(rule.tests) and (ROOT / file).exists(), kept
            assert not name or f"def {name}(" in (ROOT / file).read_text(), kept


@pytest.mark.parametrize(
    ("changed", "needed"),
    [
        ((), ["browser", "mounted"]),
        (("tests/engine/test_join.py",), ["browser", "mounted", "plan", "train"]),
        (("tests/support/flows/service/postgres/cluster.py",), ["browser", "mounted", "postgres"]),
        (("tests/training/test_worker_imports.py",), ["browser", "mounted"]),
    ],
)
def test_what_the_tests_need_that_are_run(changed: tuple[str, ...], needed: list[str]) -> None:
    """Images and programs are made for tests that use them, and for no others."""
    assert needs(Tiers(read_rules(), changed)) == needed


def test_what_a_file_of_this_project_imports() -> None:
    """This file imports the rules' reader and the table's; the root's conftest counts too."""
    found = imported(ROOT, "tests/house/test_tiers.py")
    assert {"tests/support/tiers.py", "tests/support/whole_run.py", "tests/conftest.py"} <= found


def test_the_table_has_what_ran_and_what_did_not(request: pytest.FixtureRequest) -> None:
    """A failure counts in its folder's row; seconds are those of all phases; what is left out has its command."""
    shown = WholeRun(request.config.pluginmanager.get_plugin("terminalreporter") or Silent())
    for test, when, outcome in (
        ("tests/clock/test_a.py::test_x", "setup", "passed"),
        ("tests/clock/test_a.py::test_x", "call", "passed"),
        ("tests/flows/service/test_b.py::test_y", "call", "passed"),
    ):
        shown.pytest_runtest_logreport(report(test, when, outcome))
    table = shown.table([LeftOut(tests=3, what="GPUs", why="there is none", how="buy one")])
    assert [line.split() for line in table[1:3]] == [["clock", "1", "-", "3"], ["flows/service", "1", "-", "2"]]
    assert [line.strip() for line in table[3:]] == ["left out: 3 tests of GPUs", "there is none", "run by: buy one"]


def test_parts_are_folders() -> None:
    """Those below flows are shown by themselves."""
    assert part_of("tests/solving/hpp/test_search.py::test_a") == "solving"
    assert part_of("tests/flows/service/test_port.py::test_a") == "flows/service"
    assert part_of("tests/flows/test_form.py::test_a") == "flows"


class Silent:
    """A reporter that shows nothing."""

    def write_line(self, line: str) -> None:
        """Do nothing."""


def report(test: str, when: str, outcome: str) -> pytest.TestReport:
    """A report of a phase; a setup takes a second, a call two."""
    return pytest.TestReport(
        test,
        (test, 0, test),
        {},
        outcome,
        None,
        when,
        duration={"setup": 1.0, "call": 2.0}[when],  # type: ignore[arg-type]
    )
