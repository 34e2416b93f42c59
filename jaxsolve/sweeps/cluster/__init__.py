"""Sweeps whose lanes run on the workers of a dask cluster."""
