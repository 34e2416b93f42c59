"""Geiger et al.: lazy and feature training of wide networks."""
