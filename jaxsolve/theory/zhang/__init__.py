"""Linear attention that learns regression in context (Zhang, Singh, Latham and Saxe)."""
