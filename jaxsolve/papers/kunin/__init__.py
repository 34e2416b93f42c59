"""Figures of Kunin et al., "Get rich quick" (NeurIPS 2024)."""
