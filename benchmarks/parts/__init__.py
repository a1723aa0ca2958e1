"""What the benchmarks are made of: each module measures one thing, or is a process that takes part in a measurement.

May import everything but the benchmarks themselves. Set aside: pytest-benchmark (it times functions of one process;
here processes take turns).
"""
