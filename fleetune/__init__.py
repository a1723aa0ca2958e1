"""Fine-tune a foundation model across uneven machines.

Layers, each of which may import those before it: errors, formatting, arrays and wall_clock; contracts, filesystem, jit
and linux; program; clock; checks, models, codecs, data, launching, drawing, store, links, monitoring and recovery;
preparation and solving; one package for each other stage. The import-linter contracts in pyproject.toml enforce this
order.
"""
