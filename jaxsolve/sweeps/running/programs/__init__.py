"""The kinds of program: fused, looped, in lockstep."""
