"""What `benchmarks.solvers` measures, one file per kind of problem."""
