"""Descent by an optimizer, and the gradient-flow time of each step."""
