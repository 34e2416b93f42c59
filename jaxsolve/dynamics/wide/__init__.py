"""Infinitely wide networks that learn features."""
