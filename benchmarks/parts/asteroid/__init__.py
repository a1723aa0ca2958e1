"""Parts of `benchmarks.asteroid_tables`: the paper's numbers, its models and environments, and a file per table."""
