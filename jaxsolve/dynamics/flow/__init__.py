"""Gradient flow and related flows: differential equations, integrated by a method that suits the problem."""
