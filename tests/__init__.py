"""A package, so that `tests.cases` is ours: neural-tangents installs a package of this name too."""
