"""Xu & Liu Ziyin: three mechanisms of feature learning, solved exactly."""
