"""Gradient flow and its kin: differential equations, integrated by the method that suits the problem."""
