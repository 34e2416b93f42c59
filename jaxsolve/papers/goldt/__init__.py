"""Figures of Saad & Solla (1995) and Goldt et al. (arXiv 1906.08632) on online learning from a teacher."""
