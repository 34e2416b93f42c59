"""Kunin et al.: how unbalanced starts learn features, and what they end at."""
