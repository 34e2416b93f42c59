"""Figures of Geiger, Spigler, Jacot & Wyart, "Disentangling feature and lazy learning in deep networks" (2020)."""
