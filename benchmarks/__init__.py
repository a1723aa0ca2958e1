"""Benchmarks, one package per question: `python -m benchmarks.NAME [--quick]`; each has a README with its last results.

Every benchmark prints tables, then one line of JSON (`report`). A comparison is measured in one run, both sides in
turns, and reported as a ratio with its spread. Numbers of earlier runs or other machines are not compared: their noise
and clock frequencies differ more than the effects measured here.
"""

from pathlib import Path

CONFIGS = Path(__file__).parents[1] / "configs"
