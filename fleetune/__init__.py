"""Fine-tune a foundation model across uneven machines.

Packages in the order in which they may import each other, later ones from earlier ones: errors; contracts, filesystem
and compiled; clock; checks, models, data, launching, drawing, store, links and monitoring; solving; one package per stage.
"""
