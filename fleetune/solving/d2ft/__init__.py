"""Kind "d2ft": which operation every subnet runs on every micro-batch, after D2FT.

Ding, Zhang, Wang, Ateniese, Yuan: You Don't Need All Attentions: Distributed Dynamic Fine-Tuning for Foundation Models
(arXiv 2025). A subnet (one head and its part of the feed-forward network) trains a micro-batch fully, runs it forward
only, or lets it pass; scores say what that is worth, budgets how much of it there may be. Costs are a subnet's own, so
inside a subnet a knapsack takes as many of the best as fit: that is what is done, exactly on the decimals as they were
written. The paper's dynamic program over capacities was set aside for that, and kept as a general knapsack for
micro-batches of different length. Rotating ties by a stride was set aside too: capacities with a pattern defeat it.
"""
