"""A sweep before it runs: checked, counted, and told apart from others."""
