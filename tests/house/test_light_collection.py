"""Folders of tests that need no torch are collected without it, which takes seconds to import: whoever works on a
planner or a link runs its tests again and again."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIGHT = (
    "checks", "clock", "containers", "contracts", "discovery", "drawing", "filesystem", "formatting", "jit",
    "launching", "links", "linux", "monitoring", "program", "solving", "store",
)  # fmt: skip
IMPORT_ALL = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
    heavy = [module for module in ("torch", "transformers", "prefect") if module in sys.modules]
    if heavy:
        sys.exit(f"{name} imports {', '.join(heavy)}")
"""


def test_light_folders_import_neither_torch_nor_prefect() -> None:
    """Nor transformers; the module that brings one in is named."""
    files = [file for folder in LIGHT for file in sorted((ROOT / "tests" / folder).rglob("test_*.py"))]
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL, *names], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
