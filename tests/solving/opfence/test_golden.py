"""Plans once looked at, as text: whoever changes a method reads here what became of them."""

import pytest

from tests.golden import same_as_golden
from tests.solving.opfence.instances import Plain, branches, clustered, drawn, transformer
from tests.solving.opfence.solved import solved

PROBLEMS = {
    "drawn": drawn(),
    "thinned": drawn(compression_ratio=10, beta_s_per_byte=[[None, 0.02, 0.1], [0.02, None, 0.1], [0.1, 0.1, None]]),
    "transformer": clustered(1, transformer(3), (2, 2), 20.0),
    "branches": clustered(2, branches(3, 3), (2, 1)),
}


def text(plan: Plain) -> str:
    """What it costs, then operators by device, then links."""
    verdict = "" if plan["feasible"] else f" if it fitted: {plan['reason']}"
    lines = [f"{plan['method']}: {plan['objective']:.6f} s, no plan less than {plan['lower_bound']:.6f} s{verdict}"]
    lines.append("  clusters " + " | ".join(" ".join(cluster) for cluster in plan["clusters"]))
    for device in dict.fromkeys(plan["placement"].values()):
        lines.append(f"  {device}: " + " ".join(name for name, on in plan["placement"].items() if on == device))
    lines += [f"  {x['from']} -> {x['to']}: {x['bytes']} bytes, ratio {x['ratio']:.4g}" for x in plan["links"]]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", PROBLEMS)
def test_plan(name: str) -> None:
    """The plans of all methods are the ones that were looked at."""
    methods = ("search", "opfence", "equal-modules", "equal-compute")
    same_as_golden(f"solve-opfence-{name}.txt", "".join(text(solved(PROBLEMS[name], method)) for method in methods))
