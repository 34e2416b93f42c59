"""Kunin et al.: how unbalanced initializations learn features, and where they converge."""
