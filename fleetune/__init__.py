"""Fine-tune a foundation model across uneven machines.

Packages in import order, later ones may import earlier ones: errors; contracts, filesystem and compiled; clock; checks,
models, data, launching, drawing, store, links and monitoring; solving; one package per stage.
"""
