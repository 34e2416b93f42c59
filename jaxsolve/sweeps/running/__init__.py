"""Running the lanes of a group, with one program for each group."""
