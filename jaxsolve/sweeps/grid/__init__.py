"""The parts of a sweep: axes, and blocks of lanes."""
