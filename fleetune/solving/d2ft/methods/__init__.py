"""The planners: each takes an instance and returns a table of operations."""

SUMMARIES = {
    "bilevel": "the paper's two knapsacks per subnet, each exact; full wins where both chose (Algorithms 1 and 2)",
    "bilevel-disjoint": "the same, but the inner knapsack chooses among what the outer one left: budgets are used up",
    "joint": "both operations within one capacity, exactly: backward scores first, or weighted with forward_weight",
    "random": "by seed: any micro-batches, as many as the budgets allow",
    "magnitude": "dynamic pruning: subnets of large weights train everything, the others nothing; keeps only the total",
    "magnitude-gradient": "dynamic pruning by weight magnitude x gradient magnitude; keeps only the total",
}
"""Method -> summary; the first is the default. Listing them loads no planner."""
