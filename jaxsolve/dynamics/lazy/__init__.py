"""Training under a fixed kernel, for a finite network or at infinite width."""
