"""Kernels and Hessians known only by their products with vectors."""
