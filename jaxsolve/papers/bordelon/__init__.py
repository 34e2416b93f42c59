"""Figures of Bordelon & Pehlevan, "Self-consistent dynamical field theory of kernel evolution" (NeurIPS 2022)."""
