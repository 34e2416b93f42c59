"""Steps of an optimizer: what they do, and for how much gradient-flow time each stands."""
