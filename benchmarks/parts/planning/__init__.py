"""Parts of the benchmark `planning`."""
