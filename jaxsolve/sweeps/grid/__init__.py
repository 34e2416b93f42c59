"""What a sweep is made of: axes, blocks of lanes, variables, and what tells two plans apart."""
