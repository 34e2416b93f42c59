"""The tangent kernel of a network of finite width, computed from what its parameters meet."""
