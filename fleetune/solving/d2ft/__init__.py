"""Kind "d2ft": choose the operation that every subnet runs on every micro-batch.

Source: Ding, Zhang, Wang, Ateniese, Yuan: You Don't Need All Attentions: Distributed Dynamic Fine-Tuning for Foundation
Models (D2FT, arXiv 2025). A subnet (one head and its part of the feed-forward network) trains a micro-batch fully, runs
it forward only, or skips it; scores give the value of each, budgets limit them. Costs are a subnet's own, so within a
subnet a knapsack takes as many of the best as fit, exactly on the decimals as written. Rejected alternatives: the
paper's dynamic program over capacities, kept only as a general knapsack for micro-batches of different length; rotating
ties by a stride, which periodic capacities defeat.
"""
