"""How the lanes of a group run: one program each."""
