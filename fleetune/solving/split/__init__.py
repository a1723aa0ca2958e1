"""Kind "split": parallel split learning - which helper runs the middle of each client's network, and in which order.

After J. Tirana, D. Tsigkari, G. Iosifidis, D. Chatzopoulos, "Workflow Optimization for Parallel Split Learning", IEEE
INFOCOM 2024; the format is the project's contract. Both of the paper's methods are here, its baseline, and a constraint
solver over the whole problem with bounds that close most of the gap.

Set aside: the paper's slot-indexed variables. Times are whole units of any size, a preemptive sub-problem is stated by
the windows that tasks must fit into, and schedules are rows; a plan's length costs nothing. Also helper tasks of length
0, which could have no row in a plan: forward and backward take at least one unit.
"""
