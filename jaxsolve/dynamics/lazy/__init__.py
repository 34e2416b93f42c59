"""Training under a kernel that does not move, of a network as it is or of infinite width."""
