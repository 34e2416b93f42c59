"""Figures of Zhang, Singh, Latham & Saxe on in-context learning in linear attention (arXiv 2501.16265)."""
