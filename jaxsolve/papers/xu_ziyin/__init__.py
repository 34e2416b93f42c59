"""Figures of Xu & Liu Ziyin, "Three Mechanisms of Feature Learning in a Linear Network" (ICLR 2025)."""
