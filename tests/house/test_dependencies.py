"""pyproject.toml lists every library that is imported, and no other."""

import ast
import functools
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PACKAGES = ("containers", "fleetune", "stages", "flows")
DEVELOPMENT = ("benchmarks", "tests")
BOUNDS = {"fastapi", "sqlalchemy"}
"""Libraries of Prefect, listed because their newest versions break it."""
INSTALLED_BY = {"mlflow": "mlflow-skinny", "pynvml": "nvidia-ml-py"}
"""Modules of extras, which may not be installed here -> the distribution that is listed for it."""
TOOLS = {"import-linter", "mypy", "pytest-timeout", "pytest-xdist", "ruff"}
"""Run from the command line."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DISTRIBUTIONS = metadata.packages_distributions()


def listed(*texts: str) -> set[str]:
    """Canonical names of requirements."""
    return {canonicalize_name(Requirement(text).name) for text in texts}


@functools.cache
def imported(packages: tuple[str, ...]) -> dict[str, set[str]]:
    """Top-level module that is no part of Python or of this project -> files that import it, also within functions."""
    found: dict[str, set[str]] = {}
    for path in sorted(path for package in packages for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "importlib.import_module":
                names = [given.value for given in node.args if isinstance(given, ast.Constant)]
            for name in {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names):
                if name not in (*PACKAGES, *DEVELOPMENT):
                    found.setdefault(name, set()).add(str(path.relative_to(ROOT)))
    return found


def distributions(module: str) -> set[str]:
    """Canonical names of the distributions that install a module; its own name where it is not installed here."""
    return {canonicalize_name(name) for name in DISTRIBUTIONS.get(module, [INSTALLED_BY.get(module, module)])}


def test_what_is_imported_is_listed() -> None:
    """A library that comes only because another needs it goes when the other drops it.

    Bug: httpx and coolname, which Prefect brings, were imported without being listed; so were ten others.
    """
    extras = [text for texts in PROJECT["optional-dependencies"].values() for text in texts]
    product, everything = listed(*PROJECT["dependencies"]), listed(*PROJECT["dependencies"], *extras)
    extra = PROJECT["optional-dependencies"]
    optional = listed(*(text for name in ("hub", "wandb", "mlflow") for text in extra[name]))
    for packages, allowed in ((PACKAGES, product | optional), (DEVELOPMENT, everything)):
        missing = {module: files for module, files in imported(packages).items() if not distributions(module) & allowed}
        assert not missing


def test_what_is_listed_is_imported() -> None:
    """A library that nothing imports is not installed. Bug: pandas was listed long after pyarrow read the tables."""
    extras = [text for texts in PROJECT["optional-dependencies"].values() for text in texts]
    modules = (*imported(PACKAGES), *imported(DEVELOPMENT))
    used = {name for module in modules for name in distributions(module)}
    assert listed(*PROJECT["dependencies"], *extras) - used - BOUNDS - TOOLS == set()


def test_what_is_listed_is_pinned_and_explained() -> None:
    """The constraints pin every library, and a comment says what each dependency of the product is for."""
    pinned = {canonicalize_name(line.split("==")[0]) for line in (ROOT / "constraints.txt").read_text().split()}
    assert listed(*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]) - pinned == set()
    text = (ROOT / "pyproject.toml").read_text()
    bare = [each for each in PROJECT["dependencies"] if not re.search(re.escape(f'"{each}"') + r",\s*# \w", text)]
    assert not bare
