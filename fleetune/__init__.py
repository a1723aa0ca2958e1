"""Fine-tune a foundation model across uneven machines.

Layers, each of which may import those before it: errors, formatting, arrays and wall_clock; contracts, filesystem,
compiled, cgroup and procfs; program; clock; checks, models, codecs, data, launching, drawing, store, links and
monitoring; preparation and solving; one package for each other stage. The import-linter contracts in pyproject.toml
enforce this order.
"""
