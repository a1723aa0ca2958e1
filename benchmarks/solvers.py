"""The planners of kinds deft, split, d2ft and opfence: how good, how fast, against what can be proven and the baselines.

    python -m benchmarks.solvers [--quick] [--only KIND]

Everything is solved here and now, on random problems in the style of the papers' settings, which
`benchmarks/parts/solvers/KIND_problems.py` describes; baselines run on the same problems.
"""

import argparse
from collections.abc import Callable

from benchmarks.parts.solvers import d2ft, deft, opfence, split
from benchmarks.report import Figure, Report

KINDS: dict[str, Callable[[bool], list[Figure]]] = {
    "deft": deft.figures,
    "split": split.figures,
    "d2ft": d2ft.figures,
    "opfence": opfence.figures,
}


def main() -> None:
    """Kind after kind; a table, then one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer problems, within a minute")
    parser.add_argument("--only", choices=list(KINDS), help="one kind")
    asked = parser.parse_args()
    report = Report("solvers", asked.quick)
    for kind, figures in KINDS.items():
        if asked.only in (None, kind):
            report.add(figures(asked.quick))
    report.print()


if __name__ == "__main__":
    main()
