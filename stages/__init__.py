"""The seven stages, one thin module each: read records from folders, call one function of the library, write records.

Start: `python -m stages.NAME --task task.json` (entry_point.py). `catalog.py` lists inputs and outputs of each stage.
Stages do not import Prefect, so that they run in an image without it. Rejected: one program with subcommands, which
would load every stage's libraries for each of them.
"""
