"""Figures of Rhee, Simon & Karkada, "Muon learns balanced solutions in matrix factorization" (arXiv:2606.30509)."""
