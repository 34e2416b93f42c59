"""Sweeps of the papers' figures, as configs for `jaxsolve sweep`."""

from importlib import resources


def configs() -> dict[str, str]:
    """The texts of the configs that come with jaxsolve, by name. The first line of each describes it.

    Example:
        >>> print(js.papers.configs()["kunin"].splitlines()[0])
        # Kunin et al., "Get rich quick" (NeurIPS 2024), ...
    """
    folder = resources.files("jaxsolve.papers").joinpath("configs")
    found = {item.name.removesuffix(".toml"): item for item in folder.iterdir() if item.name.endswith(".toml")}
    return {name: found[name].read_text(encoding="utf-8") for name in sorted(found)}
