"""Sweeps to report on, and what a page holds of them."""

import base64
import functools
import json
import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import xarray

from jaxsolve import observe, sweep
from tests import cases


TS = np.array([0.0, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0])
AXES = {"sigma": [0.3, 1.0, 3.0], "gamma": [0.01, 0.1, 1.0, 10.0], "seed": [0, 1, 2]}
SHAPE = (3, 4, 3)
RATES = [0.5, 1.0, 2.0, 150.0]  # the last is refused by the closed form: its lanes fail


@functools.cache
def imagined() -> xarray.Dataset:
    """What a closed form might have returned, with all four regimes in it. Not to be changed."""
    sigma, gamma, seed, t = np.meshgrid(*AXES.values(), TS, indexing="ij")
    rate = 3 * gamma * (1 + gamma * sigma**2) * (1 + 0.1 * seed)
    dims = (*AXES, "t")
    variables = {
        "loss": (dims, (np.exp(-rate * t) + 1e-9) / (1 + seed), {"units": "loss"}),
        "kernel_change": (dims, (1 - np.exp(-rate * t)) / (gamma * sigma**2 * (5 + seed)), {"units": "1"}),
        "wall": (dims[:3], 0.1 + sigma[..., 0], {"units": "s"}),
        "result": (dims[:3], np.zeros(SHAPE, np.int8)),
    }
    return xarray.Dataset(variables, {**AXES, "t": TS}, {"dynamics": "TwoLayerLine"})


def modes(store: Path | None = None) -> xarray.Dataset:
    """A sweep of which a quarter of the lanes fail."""
    problem = lambda rate, start: cases.modes(jnp.stack([start, start]), jnp.stack([rate, jnp.ones(())]))
    axes = {"rate": RATES, "start": [1.0, 2.0, -1.0]}
    watched = [observe.loss(), observe.outputs()]
    return sweep(problem, axes, cases.ModesDecay(), TS, observe=watched, store=store, batch_size=3, progress=False)


def content(page: Path) -> dict[str, Any]:
    """The data in a page."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text("utf-8"), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def numbers(packed: dict[str, str], *shape: int) -> np.ndarray:
    """An array as it was before it was packed."""
    return np.frombuffer(base64.b64decode(packed["base64"]), f"<{packed['type']}").reshape(shape)


def named(items: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """The item of a name."""
    return next(item for item in items if item["name"] == name)
