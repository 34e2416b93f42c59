"""The limit of small weights, in which training moves from saddle to saddle."""
