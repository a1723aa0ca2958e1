"""Measures the cost of training through the partitioned runtime.

`plain_loop` and `transfer_peer` are processes that take part in a measurement. pytest-benchmark does not fit: it times
functions of one process, while here processes take turns.
"""
