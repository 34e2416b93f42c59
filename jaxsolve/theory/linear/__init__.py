"""Linear networks: their flow in its own units, and solutions older than the four papers."""
