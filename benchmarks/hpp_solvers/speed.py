"""Planning times, compiled and from a cold start."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks.hpp_solvers.problems import Shape, random_problem
from benchmarks.hpp_solvers.quality import BaselineTally
from benchmarks.report import Figure
from fleetune.contracts import json_io
from fleetune.solving.hpp.solve import solve

LARGE = (
    ("asteroid", Shape(213, 6, 16, 8), 1.0),
    ("asteroid", Shape(213, 16, 16, 16), 10.0),
    ("search", Shape(213, 6, 16, 8), 1.0),
    ("search", Shape(213, 16, 16, 16), 10.0),
    ("search", Shape(100, 32, 32, 32), 10.0),
)


def speed(tally: BaselineTally, *, repeats: int, quick: bool) -> list[Figure]:
    """Solve times on large problems after compilation, and the gap of `search` to its lower bound."""
    figures = []
    for name in ("asteroid", "search"):
        solve(random_problem(0, Shape(5, 3, 4, 4)), method=name)
    for method, shape, limit_s in LARGE:
        times, gaps = [], []
        for seed in range(repeats):
            problem = random_problem(seed, shape)
            plan = solve(problem, method=method)
            times.append(plan.solve_s)
            assert plan.lower_bound is not None
            gaps.append(plan.objective / plan.lower_bound - 1)
            if method == "search" and not (quick and shape.devices > 6):
                tally.check(problem, plan)
        size = f"{shape.layers}x{shape.devices}"
        figures.append(
            Figure(
                name=f"{method}_{size}_s",
                value=max(times),
                unit="s",
                target=limit_s,
                better="lower",
                spread=(min(times), max(times)),
                about=f"slowest of {repeats} problems of {shape.layers} layers, {shape.devices} devices",
            )
        )
        if method == "search":
            figures.append(
                Figure(
                    name=f"gap_{size}",
                    value=statistics.median(gaps),
                    unit="",
                    better="lower",
                    spread=(min(gaps), max(gaps)),
                    about="round over the lower bound, less 1",
                )
            )
    return figures


def cold_start() -> Figure:
    """Time of one `solve` in a fresh process with an empty compilation cache, imports included."""
    with tempfile.TemporaryDirectory(prefix="fleetune-bench-") as folder:
        path = os.path.join(folder, "problem.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(json_io.dump(random_problem(1, Shape(30, 4, 8, 8))), file)
        program = (
            "import sys; from fleetune.contracts import json_io; from fleetune.solving.hpp.problem import Problem; "
            "from pathlib import Path; from fleetune.solving.hpp.solve import solve; "
            "solve(json_io.read(Problem, Path(sys.argv[1])))"
        )
        environment = {**os.environ, "NUMBA_CACHE_DIR": os.path.join(folder, "cache")}
        started = time.perf_counter()
        subprocess.run([sys.executable, "-P", "-c", program, path], check=True, env=environment)
        lasted_s = time.perf_counter() - started
    return Figure(
        name="cold_first_call_s",
        value=lasted_s,
        unit="s",
        target=15.0,
        better="lower",
        about="a fresh process with nothing compiled: start, imports, compiling, a search of 30 layers x 4 devices",
    )
