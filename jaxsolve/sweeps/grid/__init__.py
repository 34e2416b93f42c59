"""What a sweep is made of: axes, and blocks of lanes."""
