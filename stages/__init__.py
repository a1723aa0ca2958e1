"""The seven stages, one thin module each: read records from folders, call one function of the library, write records.

Started the same way in every place: `python -m stages.NAME --task task.json` (entry.py). `catalog.py` is the table of
what each stage reads and makes. May import everything of fleetune; Prefect stays out, so that a stage runs in an image
without it. Set aside: one program with subcommands, which would load every stage's libraries for each of them.
"""
