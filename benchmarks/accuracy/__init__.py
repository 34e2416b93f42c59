"""Cases of `benchmarks.precision`, a file for each room."""
