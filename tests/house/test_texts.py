"""What the files of the project may and must say."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(path for room in ("fleetune", "stages", "flows") for path in (ROOT / room).rglob("__init__.py"))
ONE_MACHINE = re.compile(r"(?<![\w.<>{}$*-])/(?:" + "|".join(["work", "root", "home/[a-z]+", "Users"]) + r")/[\w.]")
REGISTRY = re.compile(
    r"https?://[^\s/]*(?:artifactory|nexus|pypi|registry)[^\s/]*/|--(?:extra-)?index-url|--trusted-host", re.I
)
README = ROOT / "README.md"


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


def readme_paths() -> set[str]:
    """What looks like a path of the project in the README's code, trees and links aside from the web."""
    text = README.read_text()
    quoted = re.findall(r"`([^`\n]+)`", text) + re.findall(r"\]\(([^)#\s]+)\)", text)
    words = {word for piece in quoted for word in piece.split()}
    return {
        word.rstrip("/")
        for word in words
        if re.fullmatch(r"[\w-][\w./-]*(?:/|/[\w.-]+|\.(?:py|md|yaml|toml|txt))", word)
    }


MADE_BY_RUNNING = re.compile(
    r"(?:\.venv|runs|artifacts|checkpoint|metrics|plan|fleet|profile|evaluation|events)/|[\w-]+\.(?:html|json)"
)


def test_readme_paths_exist() -> None:
    """Every path that the README names is there."""
    missing = {path for path in readme_paths() if not MADE_BY_RUNNING.match(path) and not (ROOT / path).exists()}
    assert not missing, f"README.md names what is not there: {sorted(missing)}"


def test_readme_commands_exist() -> None:
    """Every `make` target that the README names is one, and the two that set up everything are among them."""
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"(?:^|`)\s*make ([a-z][\w-]*)", README.read_text(), re.M))
    assert named >= {"demo", "test"}
    assert named <= targets


def test_readme_configs_exist() -> None:
    """Every run file in a `fleetune run` of the README exists."""
    named = re.findall(r"fleetune run (\S+\.yaml)", README.read_text())
    assert all((ROOT / name).is_file() for name in named), named
