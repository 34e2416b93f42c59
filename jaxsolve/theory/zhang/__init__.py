"""Linear attention that learns in-context regression (Zhang, Singh, Latham and Saxe)."""
