"""Fine-tune a foundation model across uneven machines.

Layers, each of which may import those before it: errors and formatting; contracts, filesystem, compiled, cgroup and
procfs; clock; checks, models, data, launching, drawing, store, links and monitoring; preparation and solving; one
package for each other stage. The import-linter contracts in pyproject.toml enforce this order.
"""
