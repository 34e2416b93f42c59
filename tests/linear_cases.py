"""Problems that the closed forms of linear networks solve, and their comparison with integration of the weights."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

import jaxsolve as js
from jaxsolve import nets, observe
from tests.cases import assert_fails


REFERENCE = js.GradientFlow(diffrax.Dopri8(), rtol=1e-10, atol=1e-14, land_on_ts=True)

decades = lambda low, high: st.floats(low, high).map(lambda e: 10.0**e)
signs = st.sampled_from([-1.0, 1.0])


def whitened(seed: int, n: int, d: int, rank: int, size: float = 1.7):
    """Inputs with X^T X/n = size^2 times a projector of this rank."""
    rng = np.random.default_rng(seed)
    rows = np.linalg.qr(rng.normal(size=(n, n)))[0][:, :rank]
    columns = np.linalg.qr(rng.normal(size=(d, d)))[0][:, :rank]
    return jnp.asarray(size * np.sqrt(n) * rows @ columns.T, float)


def scaling(eta: Any, sigma: Any = 1.0, gamma: Any = 1.0) -> nets.Scaling:
    """Multipliers that differ from one another and from 1."""
    layers = len(eta)
    return nets.Scaling(
        multiplier=np.array([0.8, 1.3, 0.9, 1.1])[:layers],
        sigma=jnp.broadcast_to(jnp.asarray(sigma, float), (layers,)),
        eta=jnp.asarray(eta, float),
        gamma=gamma,
    )


def neuron(
    seed: int,
    *,
    eta: Any = (1.0, 1.0),
    sigma: Any = 1.0,
    gamma: Any = 1.0,
    slope: Any = 1.0,
    rank: int = 3,
    d: int = 3,
    n: int = 5,
    **options: Any,
):
    """One linear neuron on whitened inputs."""
    keys = jax.random.split(jax.random.key(seed), 2)
    net = nets.SingleNeuron(in_size=d, scaling=scaling(eta, sigma, gamma), key=keys[0])
    return js.Problem(net, whitened(seed, n, d, rank), slope * jax.random.normal(keys[1], (n,)), **options)


def balanced(
    seed: int,
    sizes: tuple[int, int, int] = (4, 3, 3),
    delta: Any = 0.0,
    *,
    eta: Any = (1.0, 1.0),
    sigma: Any = 0.5,
    gamma: Any = 1.0,
    slope: Any = 1.0,
    **options: Any,
):
    """A lambda-balanced two-layer linear network on whitened inputs, its target unrelated to its start."""
    d, h, c = sizes
    keys = jax.random.split(jax.random.key(seed), 2)
    init = nets.LambdaBalanced(delta)
    net = nets.TwoLayerLinear(
        in_size=d, out_size=c, width_size=h, scaling=scaling(eta, sigma, gamma), init=init, key=keys[0]
    )
    return js.Problem(net, whitened(seed, d + 2, d, d), slope * jax.random.normal(keys[1], (d + 2, c)), **options)


def aligned(
    seed: int,
    sizes: tuple[int, ...] = (4, 4, 3),
    *,
    eta: Any = (1.0, 1.0),
    strengths: Any = None,
    targets: Any = None,
    gamma: Any = 1.0,
    balance: bool = True,
    **options: Any,
):
    """A linear network whose layers and target share their singular vectors; `strengths` are per layer and mode."""
    rng = np.random.default_rng(seed)
    layers, modes = len(sizes) - 1, min(sizes)
    frames = [np.linalg.qr(rng.normal(size=(size, size)))[0] for size in sizes]
    targets = jnp.asarray(np.linspace(2.0, 0.7, modes) if targets is None else targets, float)
    if strengths is None:
        strengths = 0.6 * rng.uniform(0.3, 1.0, size=(1 if balance else layers, modes))
    strengths = jnp.broadcast_to(jnp.asarray(strengths, float), (layers, modes))
    scale = scaling(eta, 1.0, gamma)
    rectangle = lambda values, out, into: jnp.zeros((out, into)).at[jnp.arange(modes), jnp.arange(modes)].set(values)
    weights = [
        jnp.sqrt(scale.eta[i]) * frames[i + 1] @ rectangle(strengths[i], sizes[i + 1], sizes[i]) @ frames[i].T
        for i in range(layers)
    ]
    x = whitened(seed, sizes[0] + 2, sizes[0], sizes[0])
    y = x @ (frames[-1] @ rectangle(targets, sizes[-1], sizes[0]) @ frames[0].T).T
    init, key = nets.Given(weights), jax.random.key(0)
    net = nets.DeepLinear(
        in_size=sizes[0], out_size=sizes[-1], width_size=sizes[1], depth=layers - 1, scaling=scale, init=init, key=key
    )
    return js.Problem(net, x, y, **options)


def errors(problem: js.Problem, form: Any, ts: Any, *, reference: Any = REFERENCE) -> dict[str, float]:
    """Largest difference to the flow of the weights over time, relative to its largest value (or 1e-4).

    The reference controls its error in the weights, so it cannot resolve outputs much smaller than they are.
    """
    watched = [observe.outputs(), observe.kernel()]
    if js.Quantity.PARAMS in form.provides:
        watched += [observe.weight_norms(), observe.weight_distances()]
    exact, flow = (js.solve(problem, d, ts, observe=watched, throw=False) for d in (form, reference))
    assert exact.result == js.RESULTS.successful
    assert flow.result == js.RESULTS.successful
    gap = lambda a, b: float(jnp.max(jnp.abs(a - b)) / jnp.maximum(jnp.max(jnp.abs(b)), 1e-4))
    found = {name: gap(exact[name], flow[name]) for name in exact.observed}
    if js.Quantity.PARAMS in form.provides:
        found["params"] = max(
            gap(a, b) for a, b in zip(exact.final.params.weights, flow.final.params.weights, strict=True)
        )
    return found


def assert_every_rate_matters(problem: js.Problem, form: Any, ts: Any, *, atol: float = 1e-10) -> None:
    """The closed form equals the flow of the weights; its twins, each with the rate of one layer left out, do not."""
    flow = js.solve(problem, REFERENCE, ts, observe=observe.outputs())["outputs"]

    @jax.jit
    def closed(eta):
        twin = eqx.tree_at(lambda p: p.net.scaling.eta, problem, eta)
        return jax.vmap(lambda t: form.at(twin, t).outputs)(ts)

    eta = problem.net.scaling.eta
    check = lambda eta: np.testing.assert_allclose(closed(eta), flow, atol=atol)
    check(eta)
    for layer in range(eta.shape[0]):
        assert eta[layer] != 1
        assert_fails(lambda layer=layer: check(eta.at[layer].set(1)))
