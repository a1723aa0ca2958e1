"""No module imports itself in a circle, at its top or within a function."""

import ast
from collections.abc import Container, Iterator
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("containers", "fleetune", "stages", "flows", "benchmarks", "tests")


def sources() -> dict[str, str]:
    """module -> source text, of all code."""
    found = {}
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text()
    return found


def import_graph(sources: dict[str, str]) -> nx.DiGraph:
    """Edges from each module to the modules that it imports anywhere in its text, also for types only.

    Importing a module runs the packages that it lies in, so they are imported too, except those that the importing
    module lies in itself: they run before it.
    """
    graph = nx.DiGraph()
    graph.add_nodes_from(sources)
    for module, source in sources.items():
        for name in imported_modules(source, sources):
            parts = name.split(".")
            packages = {".".join(parts[:end]) for end in range(1, len(parts))}
            around = {package for package in packages if module.startswith(f"{package}.")}
            graph.add_edges_from((module, each) for each in {name, *packages} - around if each in sources)
    return graph


def imported_modules(source: str, known: Container[str]) -> Iterator[str]:
    """Names of the modules that a text imports; a name imported from a package is a module if it is a known one."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name if name in known else node.module for name in names)


def circles(graph: nx.DiGraph) -> list[list[str]]:
    """The modules of each circle of imports."""
    return [sorted(part) for part in nx.strongly_connected_components(graph) if len(part) > 1]


@pytest.mark.parametrize(
    ("sources", "found"),
    [
        ({"p.a": "import p.b", "p.b": "def f():\n    from p import a"}, [["p.a", "p.b"]]),
        ({"p.a": "from p.b import f", "p.b": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import p.a"},
         [["p.a", "p.b"]]),
        ({"p": "from p.a import f", "p.a": "from p import g"}, [["p", "p.a"]]),
        ({"p": "from p.a import f", "p.a": "from q.b import g", "q": "", "q.b": "from p.c import h", "p.c": ""},
         [["p", "p.a", "q.b"]]),
        ({"p": "from p.a import f", "p.a": "from p.b import g", "p.b": "", "q": "from p import a, b"}, []),
    ],
    ids=["within a function", "for types", "through the package", "through a package on the way", "none"],
)  # fmt: skip
def test_a_circle_is_found(sources: dict[str, str], found: list[list[str]]) -> None:
    """A circle is found wherever in the text its imports stand."""
    assert circles(import_graph(sources)) == found


def test_no_module_imports_itself_in_a_circle() -> None:
    """Of two modules that import each other neither can be read, tested or moved without the other.

    Bug: placements imported the sites of containers within a function, and those the placements.
    """
    assert circles(import_graph(sources())) == []
