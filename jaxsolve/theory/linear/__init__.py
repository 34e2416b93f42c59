"""Linear networks: their flow in natural units, and solutions older than the four papers."""
