"""Where the lanes of a sweep are kept: memory, or a Zarr store."""
