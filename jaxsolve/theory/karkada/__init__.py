"""Kernels on data of a known covariance (Karkada, Turnbull, Liu and Simon)."""
