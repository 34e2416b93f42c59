"""Kernels of networks of infinite width."""
