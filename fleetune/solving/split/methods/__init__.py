"""Methods of kind "split": each takes an instance and search options and returns a candidate."""

SUMMARIES = {
    "auto": "ours: the best start improved by local search, the constraint solver where it is small; with a bound",
    "exact": "a constraint solver over assignment and both directions at once; proves its plan where it can",
    "admm": "the paper's decomposition: forwards and assignment by ADMM, then the optimal backwards; preemptive only",
    "balanced-greedy": "the paper's heuristic: each client to the helper with the fewest, first come, first served",
    "random-fcfs": "the paper's baseline: a random assignment that fits, first come, first served",
}
"""Method -> summary; the first is the default. Listing them loads no solver."""
