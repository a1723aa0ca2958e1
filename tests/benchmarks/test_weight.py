"""What the benchmark `weight` counts."""

import threading
from pathlib import Path

from benchmarks.weight.sources import PRODUCT, ROOT, Size, package_sizes, total
from benchmarks.weight.trace import Entry, Trace, Walk, together
from fleetune.contracts.fleet import LinkSpec

SOURCE = '''"""Two."""

class A:
    def f(self):
        return lambda: (x for x in ())

    class B:
        async def g(self): ...
'''


def test_a_text_is_counted(tmp_path: Path) -> None:
    """Lines with the empty ones; methods, but neither lambdas nor comprehensions; classes within classes."""
    (tmp_path / "a.py").write_text(SOURCE)
    (tmp_path / "b.py").write_text("\n")
    assert Size.of(tmp_path.glob("*.py")) == Size(lines=9, files=2, functions=2, classes=2)


def test_every_file_is_in_one_package() -> None:
    """No file of the product is left out of the sum, and none is counted twice."""
    files = [path for package in PRODUCT for path in (ROOT / package).rglob("*.py")]
    assert total(package_sizes().values()).files == len(files) == len(set(files))


def test_a_walk_is_what_is_entered_between_two_times() -> None:
    """Files, functions without the comprehensions in them, and moves: calls from another file, not the first of a
    thread."""
    entries = [
        Entry(1.0, "a", "f", ""),
        Entry(2.0, "b", "g", "a"),
        Entry(2.5, "b", "g.<locals>.<genexpr>", "b"),
        Entry(3.0, "b", "g", "a"),
        Entry(4.0, "c", "h", "b"),
    ]
    walk = Walk.of(entries, 1.0, 4.0)
    assert walk == Walk(frozenset("ab"), frozenset({("a", "f"), ("b", "g")}), 2)
    both = together([walk, Walk.of(entries, 3.0, 5.0)])
    assert both == Walk(frozenset("abc"), frozenset({("a", "f"), ("b", "g"), ("c", "h")}), 4)


def test_a_trace_has_the_product_s_functions() -> None:
    """Of this thread and of one that starts within, with the file that called them, if maybe through a library; nothing
    once it is over, and nothing of tests and libraries."""

    def make(_: object = None) -> None:
        LinkSpec(source="a", target="b", mbit_per_s=1.0)

    with Trace() as trace:
        list(map(make, [1]))
        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
    make()
    fleet, record = "fleetune/contracts/fleet.py", "fleetune/contracts/record.py"
    once = [(fleet, "LinkSpec.__post_init__", "")]
    once += [(record, name, fleet) for name in ("positive", "not_negative", "check_link_ends")]
    assert [(entry.file, entry.function, entry.caller) for entry in trace.entries] == once * 2
