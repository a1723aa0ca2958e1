"""Which tests `make test` runs: all but those that tests/tiers.toml leaves to `make test-all`, unless they changed.

`python -m tests.support.tiers COMMIT` prints what the tests that are run since a commit need beside Python: images of
the Dockerfile, and programs of Debian.
"""

import ast
import functools
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
TIERS = ROOT / "tests" / "tiers.toml"
PRODUCT = ("fleetune", "flows", "stages", "containers", "benchmarks")


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Tests that only `make test-all` runs."""

    tests: str
    """Folder or file; all below it."""
    why: str
    slow: bool = False
    """True if it is of slow tests alone."""
    keeps: tuple[str, ...] = ()
    """Folders, files, or tests without their parameters, that `make test` runs all the same."""
    covers: tuple[str, ...] = ()
    """Folders and files whose change brings its tests back."""


@dataclass(frozen=True)
class Tiers:
    """The rules, and what has changed."""

    rules: tuple[Rule, ...]
    changed: Collection[str] = ()
    """Files, by their paths in the repository."""
    root: Path = ROOT
    slow: Collection[str] = ()
    """Node ids of slow tests."""
    brought_back: dict[str, str] = field(default_factory=dict, compare=False)
    """Test file -> a changed file for which it is run; empty where there is none."""

    def left_out(self, test: str) -> Rule | None:
        """Return the rule that leaves a test (its node id) to `make test-all`; None if it is run."""
        file, _, name = test.partition("::")
        rules = (rule for rule in self.rules if _is_below(file, rule.tests) and (test in self.slow or not rule.slow))
        rule = next(rules, None)
        if rule is None or _is_below_any(file, rule.keeps) or f"{file}::{name.partition('[')[0]}" in rule.keeps:
            return None
        return None if self.brought_back_by(file, rule) else rule

    def brought_back_by(self, file: str, rule: Rule) -> str:
        """Return a changed file for which a test file is run; empty if there is none."""
        if file not in self.brought_back and self.changed:  # to find what each file imports takes seconds
            read = {file, *imported(self.root, file)}
            found = (each for each in sorted(self.changed) if each in read or _is_below_any(each, rule.covers))
            self.brought_back[file] = next(found, "")
        return self.brought_back.get(file, "")


def read_rules(path: Path = TIERS) -> tuple[Rule, ...]:
    """Read the rules of a file."""
    listed = tomllib.loads(path.read_text(encoding="utf-8"))["later"]
    return tuple(Rule(**{k: tuple(v) if isinstance(v, list) else v for k, v in each.items()}) for each in listed)


def changed_since(commit: str, root: Path = ROOT) -> list[str]:
    """Return the files that differ from a commit, those not added yet included."""
    differ = _git(root, "diff", "--name-only", commit)
    return sorted({*differ, *_git(root, "ls-files", "--others", "--exclude-standard")})


def imported(root: Path, test_file: str) -> set[str]:
    """Return what a test file and the conftests above it import: modules of the tests with all that these import, of
    the product only the modules themselves."""
    found, ahead = set[str](), [test_file, *_conftests(root, test_file)]
    found.update(ahead)
    while ahead:
        for file in _imports(root, ahead.pop()):
            if file not in found:
                found.add(file)
                if file.startswith("tests/"):
                    ahead.append(file)
    return found


def needs(tiers: Tiers) -> list[str]:
    """Return what the tests that are run need beside Python: of the first tier, and of files that are brought back."""
    back = set()
    for rule in (each for each in tiers.rules if not each.slow):
        below = tiers.root / rule.tests
        files = [below] if below.is_file() else sorted(below.rglob("test_*.py"))
        names = (str(file.relative_to(tiers.root)) for file in files)
        back |= {name for name in names if tiers.brought_back_by(name, rule)}
    found = ["browser", "mounted"]
    if any(_is_below(name, "tests/engine") for name in back):
        found += ["plan", "train"]
    if any("/postgres/" in name for name in back):
        found.append("postgres")
    return found


def _conftests(root: Path, test_file: str) -> list[str]:
    folders = [folder for folder in Path(test_file).parents if folder != Path(".")]
    return [str(folder / "conftest.py") for folder in folders if (root / folder / "conftest.py").exists()]


@functools.cache
def _imports(root: Path, file: str) -> tuple[str, ...]:
    tree = ast.parse((root / file).read_bytes())
    return tuple(dict.fromkeys(path for name in _names(tree) if (path := _path(root, name))))


def _names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _path(root: Path, module: str) -> str:
    """Return the file of a module of this project; empty for any other name."""
    parts = module.split(".")
    if parts[0] not in (*PRODUCT, "tests"):
        return ""
    candidates = (Path(*parts).with_suffix(".py"), Path(*parts, "__init__.py"))
    return next((str(each) for each in candidates if (root / each).is_file()), "")


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")


def _is_below_any(path: str, folders: Collection[str]) -> bool:
    return any(_is_below(path, folder) for folder in folders)


def _git(root: Path, *arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


if __name__ == "__main__":
    sys.stdout.write(" ".join(needs(Tiers(read_rules(), changed_since(sys.argv[1])))) + "\n")
