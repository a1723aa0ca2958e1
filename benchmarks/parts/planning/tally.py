"""What must hold of every plan of `search`, counted over all problems of the benchmark."""

from benchmarks.report import Figure
from fleetune.errors import Infeasible
from fleetune.solving.hpp.methods import SUMMARIES
from fleetune.solving.hpp.problem import Problem, Solution
from fleetune.solving.hpp.solve import solve

BASELINES = [name for name in SUMMARIES if name not in ("search", "hetpipe")]


class Tally:
    """Counts problems, baselines that beat `search`, and budgets it broke."""

    def __init__(self) -> None:
        self.problems = 0
        self.compared = 0
        self.worse: list[str] = []
        self.over = 0
        self.gains: dict[str, list[float]] = {name: [] for name in BASELINES}

    def check(self, problem: Problem, found: Solution) -> None:
        """Compare a plan of `search` with every feasible synchronous baseline, and with the budgets."""
        self.problems += 1
        budgets = {device.name: device.memory_bytes for device in problem.devices}
        self.over += any(peak > budgets[name] for name, peak in found.memory_bytes.items())
        for name in BASELINES:
            try:
                baseline = solve(problem, method=name)
            except Infeasible:
                continue
            if baseline.feasible:
                self.compared += 1
                self.gains[name].append(baseline.objective / found.objective)
                if baseline.objective < found.objective:
                    self.worse.append(name)

    def figures(self) -> list[Figure]:
        """Beaten never, over budget never; and by how much each baseline is slower."""
        about = f"of {self.compared} plans of baselines on {self.problems} problems, those faster than search's"
        found = [
            Figure(
                name="beaten_by_a_baseline", value=len(self.worse), unit="plans", target=0, better="lower", about=about
            ),
            Figure(name="over_a_budget", value=self.over, unit="plans", target=0, better="lower", about="of search's"),
        ]
        for name, gains in self.gains.items():
            if gains:
                gains.sort()
                found.append(
                    Figure(
                        name=f"{name}_over_search",
                        value=gains[len(gains) // 2],
                        unit="x",
                        better="higher",
                        spread=(gains[0], gains[-1]),
                        about=f"round of {name} over search's, median of {len(gains)} problems where it fits",
                    )
                )
        return found
