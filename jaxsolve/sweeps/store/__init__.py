"""The places where the lanes of a sweep go: memory, or a Zarr store."""
