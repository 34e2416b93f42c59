"""The configs that come with jaxsolve, cut down to seconds."""

import copy
import tomllib
from typing import Any

from jaxsolve.papers import configs


SMALL: dict[str, dict[str, Any]] = {
    "atanasov": {
        "times": [0, 1, 3, 10, 30],
        "axes": {"depth": [1, 2], "sigma": [0.1, 0.3], "seed": {"range": 2}},
        "problem.network.in_size": 4,
        "problem.network.width_size": 6,
        "problem.data.in_size": 4,
        "problem.data.n_train": 8,
    },
    "geiger": {
        "times": [0, 0.1, 1, 10],
        "axes": {"width": [4], "scale": [0.1, 10.0], "seed": {"range": 2}},
        "problem.network.in_size": 3,
        "problem.network.depth": 2,
        "problem.data.n_train": 8,
        "problem.data.n_test": 8,
        "problem.data.pca": 3,
    },
    "kunin": {"times": [0, 1, 20]},
    "kunin_grid": {
        "times": [0, 0.5, 5],
        "observe": ["loss", "kernel_distance"],
        "axes": {
            "tau": {"geomspace": [0.1, 1.9952623149688795, 5]},
            "delta": {"linspace": [-1, 1, 5]},
            "seed": {"range": [100, 102]},
        },
        "problem.network.in_size": 4,
        "problem.network.width_size": 6,
        "problem.data.in_size": 4,
        "problem.data.n_train": 12,
        "problem.data.n_test": 8,
        "problem.data.teacher.in_size": 4,
    },
    "xu_ziyin": {"times": [0, 1, float("inf")], "axes.seed": {"range": 2}},
}


def small(name: str) -> dict[str, Any]:
    """The content of a config, with fewer and smaller lanes."""
    return changed(tomllib.loads(configs()[name]), copy.deepcopy(SMALL[name]))


def changed(table: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """A table with other values at places such as "problem.network.width_size"; None removes one."""
    for place, value in values.items():
        *path, key = place.split(".")
        inner = table
        for part in path:
            inner = inner[part]
        if value is None:
            del inner[key]
        else:
            inner[key] = value
    return table
