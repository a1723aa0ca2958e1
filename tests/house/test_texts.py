"""What the files of the project may and must say."""

import ast
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(path for package in ("fleetune", "stages", "flows") for path in (ROOT / package).rglob("__init__.py"))
ONE_MACHINE = re.compile(r"(?<![\w.<>{}$*-])/(?:" + "|".join(["work", "root", "home/[a-z]+", "Users"]) + r")/[\w.]")
REGISTRY = re.compile(
    r"https?://[^\s/]*(?:artifactory|nexus|pypi|registry)[^\s/]*/|--(?:extra-)?index-url|--trusted-host", re.I
)
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]


def tracked() -> list[Path]:
    """Files that git keeps; all files outside hidden folders where this is not a checkout."""
    asked = ["git", "-C", str(ROOT), "ls-files", "-z"]
    listed = subprocess.run(asked, capture_output=True, text=True, check=False)
    if listed.returncode == 0 and listed.stdout:
        return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]
    return [p for p in ROOT.rglob("*") if p.is_file() and not any(s[0] == "." for s in p.relative_to(ROOT).parts)]


def texts() -> dict[Path, str]:
    """Every tracked file that is text, but this one (it spells what it looks for)."""
    found = {}
    for path in tracked():
        content = path.read_bytes()
        if b"\0" not in content and path != Path(__file__):
            found[path.relative_to(ROOT)] = content.decode("utf-8", "replace")
    return found


def test_no_path_of_one_machine() -> None:
    """No file names a folder that exists only on the machine where it was written, nor a package registry."""
    at_fault = [
        f"{path}:{number}: {line.strip()[:100]}"
        for path, text in texts().items()
        for number, line in enumerate(text.splitlines(), 1)
        if ONE_MACHINE.search(line) or REGISTRY.search(line)
    ]
    assert not at_fault, "\n".join(at_fault)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: ".".join(path.relative_to(ROOT).parts[:-1]))
def test_package_says_why(package: Path) -> None:
    """A package's docstring says in few lines what it is for."""
    said = ast.get_docstring(ast.parse(package.read_text()))
    assert said, f"{package.relative_to(ROOT)} has no docstring"
    assert len(said.splitlines()) <= 12, f"the docstring of {package.relative_to(ROOT)} is long"


def paths_named(page: Path) -> set[str]:
    """What looks like a path of the project in a page's code, from the page's folder if it is a link; URLs aside."""
    text = page.read_text()
    links = {os.path.normpath(page.relative_to(ROOT).parent / link) for link in re.findall(r"\]\(([^)#\s]+)\)", text)
             if ":" not in link}  # fmt: skip
    words = {word for piece in re.findall(r"`([^`\n]+)`", text) for word in piece.split()} | links
    return {
        word.rstrip("/")
        for word in words
        if re.fullmatch(r"[\w-][\w./-]*(?:/|/[\w.-]+|\.(?:py|md|yaml|toml|txt|png|svg))", word)
    }


MADE_BY_RUNNING = re.compile(
    r"(?:\.venv|runs|artifacts|checkpoint|metrics|plan|fleet|profile|evaluation|events)/|[\w-]+\.(?:html|json)"
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_of_a_page_exist(page: Path) -> None:
    """Every path that a page of the documentation names is there."""
    missing = {path for path in paths_named(page) if not MADE_BY_RUNNING.match(path) and not (ROOT / path).exists()}
    assert not missing, f"{page.name} names what is not there: {sorted(missing)}"


@pytest.mark.parametrize(("page", "most"), [("README.md", 150), ("docs/glossary.md", 40)])
def test_a_page_stays_short(page: str, most: int) -> None:
    """The README is a tour, and the glossary is read in one look: neither grows beyond its number of lines."""
    assert len((ROOT / page).read_text().splitlines()) <= most


def test_readme_commands_exist() -> None:
    """Every `make` target of the documentation exists, and the README names the two that set up everything."""
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.M))
    named = {page: set(re.findall(r"(?:^|`)\s*make ([a-z][\w-]*)", page.read_text(), re.M)) for page in PAGES}
    assert named[README] >= {"demo", "test"}
    assert set().union(*named.values()) <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_configs_of_a_page_exist(page: Path) -> None:
    """Every run file in a `fleetune run` of the documentation exists."""
    named = re.findall(r"fleetune run (\S+\.yaml)", page.read_text())
    assert all((ROOT / name).is_file() for name in named), named
