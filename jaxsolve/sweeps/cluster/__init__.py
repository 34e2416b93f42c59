"""Sweeps whose lanes run in other processes: the workers of a dask cluster, the processes of `jax.distributed`."""
