"""The tangent kernel of a network of finite width, from operands and cotangents of its parameters."""
