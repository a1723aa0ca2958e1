"""Parts of `benchmarks.fleet`: fleets of containers, runs on them, and what came of it."""
