"""Kind "split": parallel split learning. Choose a helper for the middle part of each client's network, and an order.

Source: J. Tirana, D. Tsigkari, G. Iosifidis, D. Chatzopoulos, "Workflow Optimization for Parallel Split Learning", IEEE
INFOCOM 2024. The room holds both methods of the paper, its baseline, and an exact search with bounds that close most of
the gap.

Rejected alternatives: the paper's slot-indexed variables. Times are whole units of any size, a preemptive sub-problem
is stated by windows, and schedules are rows, so that a plan's length costs nothing. Tasks of length 0, which would have
no row in a plan: forward and backward take at least one unit.
"""
