"""The sweep of the quickstart, and the regime of each of its cells."""

import warnings
from typing import TYPE_CHECKING

import diffrax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from .. import nets, observe, until
from .._core import Problem
from ..dynamics import GradientFlow
from ..observe import Regime
from ..sweeps import sweep


if TYPE_CHECKING:
    import xarray

DIGITS = (4, 9)
SAMPLES, COMPONENTS = 64, 10
NETWORKS = ("two-layer linear", "MLP")
WIDTHS = (8, 32)
SIGMAS = (0.5, 2.0)
GAMMAS = tuple(np.logspace(-2, 2, 9))
ETAS = tuple(np.logspace(-4, 5, 10))
FIRST, LAST = 0.1, 10.0  # the window of times that decides between frozen, unstable and the rest
LEARNED = 0.2  # a run stops when its loss falls to this fraction of the initial one


def on_a_line(x: Float[Array, "n in"], y: Float[Array, "n 1"]) -> tuple[Array, Array]:
    """The digits projected on the direction that best predicts their class."""
    direction = jnp.linalg.lstsq(x, y[:, 0])[0]
    direction = direction / jnp.linalg.norm(direction)
    return (x @ direction)[:, None] * direction[None, :], y


def measure(digits: tuple[Array, Array], line: tuple[Array, Array], seeds: int, progress: bool) -> "xarray.Dataset":
    """Trains every cell of the grid by gradient flow, and adds half-loss times and regimes to the observables."""

    def problem(network, width, sigma, gamma, eta, seed):
        key = jr.key(seed)
        if network == NETWORKS[0]:
            scaling = nets.Scaling.ntk(gamma, sigma=sigma, eta=eta)
            net = nets.TwoLayerLinear(in_size=COMPONENTS, width_size=width, scaling=scaling, key=key)
            return Problem(net, *line, centered=True)
        scaling = nets.Scaling.ntk(gamma, sigma=sigma, eta=eta, gain=True)
        net = nets.MLP(
            in_size=COMPONENTS,
            out_size=1,
            width_size=width,
            depth=2,
            activation=nets.softplus(beta=5.0),
            scaling=scaling,
            key=key,
        )
        return Problem(net, *digits, centered=True)

    ts = np.concatenate([[0.0], np.geomspace(FIRST, LAST, 13)])
    axes = {
        "network": list(NETWORKS),
        "width": list(WIDTHS),
        "sigma": list(SIGMAS),
        "gamma": list(GAMMAS),
        "eta": list(ETAS),
        "seed": range(seeds),
    }
    # Thousands of short runs in lockstep, few of them stiff: many cheap steps cost less than a few expensive ones.
    flow = GradientFlow(diffrax.Tsit5(), rtol=1e-4, atol=1e-7, until=until.loss_fraction(LEARNED), max_steps=5000)
    with warnings.catch_warnings():  # a regime needs the kernel change up to a factor, not to two digits
        warnings.filterwarnings("ignore", message=".* lanes can be trusted to fewer than")
        swept = sweep(problem, axes, flow, ts, observe=[observe.loss(), observe.kernel_change()], progress=progress)
    half = observe.half_loss_time(ts, swept["loss"].values)
    change = swept["kernel_change"].values[..., -1]
    dims = swept["result"].dims
    names = {"flag_values": [int(r) for r in Regime], "flag_meanings": " ".join(r.name.lower() for r in Regime)}
    swept["half_loss_time"] = dims, half, {"units": "gradient-flow time"}
    swept["regime"] = dims[:-1], _regime(half, change), names
    return swept


def _regime(half: np.ndarray, change: np.ndarray) -> np.ndarray:
    """The regime of every cell, from its median seed."""
    ts = np.array([0.0, FIRST, LAST])
    middle, moved = np.median(half, axis=-1), np.median(change, axis=-1)
    return observe.classify(middle, moved, ts).astype(np.int8)
