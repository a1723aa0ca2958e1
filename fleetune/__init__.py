"""Fine-tune a foundation model across uneven machines.

Rooms, in the order in which they may import each other (later ones import earlier ones, never back):
errors, contracts, clock, {models, data, links, launching, drawing, store, checks}, one room per stage.
"""
