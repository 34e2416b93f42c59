"""Figures of Bordelon & Mori, "Theory of optimal learning rate schedules and scaling laws" (arXiv 2602.04774)."""
