"""Parts of `benchmarks.profiling_time`: the paper's Table 8, what is profiled and where, one profile timed, a table."""
