"""Time of the first solve in a new process."""

import json
import subprocess
import sys
from typing import Any

from fleetune.contracts import json_io

PROGRAM = (
    "import sys; from fleetune import solving; "
    "kind, problem = solving.read(sys.stdin.buffer.read(), 'problem', solving.kinds()); "
    "print(solving.solve(kind, problem, method=sys.argv[1]).solve_s)"
)


def first_solve_s(problem: Any, method: str) -> float:
    """Return the solve time of a problem of any kind in a new process, loading of libraries aside."""
    source = json.dumps(json_io.dump(problem)).encode()
    command = [sys.executable, "-P", "-c", PROGRAM, method]
    return float(subprocess.run(command, input=source, capture_output=True, check=True).stdout)
