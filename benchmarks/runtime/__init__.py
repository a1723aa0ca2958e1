"""Measures the cost of training through the partitioned runtime.

`plain_loop` and `transfers` run as processes that take part in a measurement. pytest-benchmark does not fit: it times
functions of one process, while here processes take turns.
"""
