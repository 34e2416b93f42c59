"""A sweep before it runs: its checks, its costs, and its identity."""
