"""The image's stage that compiles the planners copies what they import, no more and no less."""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LISTS = "; import sys; print(*{name.split('.')[1] for name in sys.modules if name.startswith('fleetune.')})"


def test_the_planners_stage_copies_what_its_command_imports() -> None:
    """Bug: a new module below the solvers was not copied, so that no image could be built."""
    stage = (ROOT / "Dockerfile").read_text().split(" AS planners\n")[1].split("\nFROM ")[0]
    copied = {Path(source).stem for line in re.findall("COPY (.*)", stage) for source in line.split()[:-1]}
    _, option, code = json.loads(stage[stage.index('["python3"') :])
    code = code.replace("/problem.json", str(ROOT / "configs/problems/three-devices.json"))
    command = [sys.executable, option, code + LISTS]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert copied - {"__init__"} == set(ran.stdout.splitlines()[-1].split())
