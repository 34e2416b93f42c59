"""The limit of small weights, in which training goes from saddle to saddle."""
