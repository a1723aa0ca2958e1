"""A working directory whose files are called like modules."""

import os
import subprocess
import sys
from pathlib import Path

import yaml

from tests.support.whole.pipelines import CONFIG

OURS = ("benchmarks", "containers", "fleetune", "flows", "stages", "tests")
THEIRS = ("docker", "numpy", "prefect", "pydantic", "sitecustomize", "torch", "transformers", "uvicorn", "yaml", "zmq")


def test_nothing_of_the_working_directory_is_run(config: Path, tmp_path: Path) -> None:
    """`python -m` once put the working directory first on the path: a `queue.py` among somebody's data ran in every
    stage and worker. Whatever a file there is called, it is data to a whole run: command, server, stages and workers.
    """
    config.write_text(yaml.safe_dump({**CONFIG, "training": {**CONFIG["training"], "rounds": 1}}))
    hostile, mark = tmp_path / "data", tmp_path / "mark"
    hostile.mkdir()
    for name in (*sys.stdlib_module_names, *OURS, *THEIRS):
        (hostile / f"{name}.py").write_text(f"open({str(mark)!r}, 'a').write('{name} ')\n")
    program = str(Path(sys.executable).with_name("fleetune"))
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(
        [program, "run", str(config), "--root", "kept"], cwd=hostile, env=kept, capture_output=True, text=True
    )
    assert not mark.exists(), mark.read_text()
    assert ran.returncode == 0, ran.stderr
    assert next((hostile / "kept").glob("artifacts/evaluation/*/report.html"), None), "all stages have run"
