"""Muon in aligned deep linear networks: the closed form against steps with exact polar factors, in NumPy."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsolve as js
from tests import cases


STRENGTHS = np.array([3.0, 1.4, 0.6, 0.3])
RATES = np.array([1.0, 0.5, 2.0])


def _rotation(draws, rows, columns):
    return np.linalg.qr(draws.normal(size=(rows, rows)))[0][:, :columns]


def _aligned(sizes, *, seed=0, scale=0.3, gamma=1.0, tilt=0.0):
    """Layers with the target's singular vectors, and values of their own."""
    draws, modes = np.random.default_rng(seed), len(STRENGTHS)
    frames = [_rotation(draws, size, modes) for size in sizes]
    values = draws.uniform(0.2, 1.0, (len(sizes) - 1, modes)) * scale
    layers = [(up * row) @ down.T for row, (down, up) in zip(values, itertools.pairwise(frames), strict=True)]
    layers = [layer + tilt * draws.normal(size=layer.shape) for layer in layers]
    target = gamma * (frames[-1] * STRENGTHS) @ frames[0].T
    depth = len(layers) - 1
    scaling = js.nets.Scaling([1.0] * len(layers), sigma=[1.0] * len(layers), eta=RATES[: len(layers)], gamma=gamma)
    net = js.nets.DeepLinear(
        in_size=sizes[0],
        out_size=sizes[-1],
        width_size=sizes[1],
        depth=depth,
        scaling=scaling,
        init=js.nets.Given(layers),
        key=jax.random.key(0),
    )
    x = 0.7 * np.sqrt(sizes[0]) * _rotation(draws, sizes[0], sizes[0])
    return js.Problem(net, x, x @ target.T), values


def _stepped(problem, steps, size):
    """Weights after steps W - size eta polar(gradient): exact polar factors on the range of the gradient."""
    weights = [np.asarray(w, np.float64) for w in problem.net.weights]
    x, y = np.asarray(problem.x, np.float64), np.asarray(problem.y, np.float64)
    gamma = float(problem.net.scaling.gamma)
    rates = np.asarray(problem.net.scaling.eta, np.float64)
    for _ in range(steps):
        miss = (gamma * x @ np.linalg.multi_dot(weights[::-1]).T - y).T @ x
        gradients = []
        for place in range(len(weights)):
            gradient = gamma * miss
            for layer in weights[place + 1 :][::-1]:
                gradient = layer.T @ gradient
            for layer in weights[:place]:
                gradient = gradient @ layer.T
            u, s, v = np.linalg.svd(gradient, full_matrices=False)
            gradients.append((u * (s > 1e-9 * s[0])) @ v)
        weights = [w - size * rate * g for w, rate, g in zip(weights, rates, gradients, strict=True)]
    return weights


@pytest.mark.x64_only
@pytest.mark.parametrize("sizes", [(4, 4, 4), (4, 4, 4, 4), (5, 6, 6, 4), (6, 5, 4)])
@pytest.mark.parametrize("gamma", [1.0, -0.6])
def test_the_error_of_steps_is_their_chatter(sizes, gamma):
    problem, _ = _aligned(sizes, gamma=gamma)
    form = js.theory.MuonModes()
    assert bool(form.check(problem).exact), form.check(problem).missed()
    last = float(form.arrival_times(problem).max())
    for t in (0.3 * last, 0.8 * last, 1.2 * last):
        solved = [np.asarray(w) for w in form.at(problem, jnp.asarray(t)).params.weights]
        products = [np.abs(np.linalg.multi_dot(solved[::-1])).max()]
        for steps in (300, 3000):
            stepped = _stepped(problem, steps, t / steps)
            products.append(np.abs(np.linalg.multi_dot(stepped[::-1]) - np.linalg.multi_dot(solved[::-1])).max())
        bound = 2 * t * max(RATES) * len(solved) * np.prod([np.linalg.norm(w, 2) for w in solved[1:]])
        assert products[1] < bound / 300 + 1e-12
        assert products[2] < bound / 3000 + 1e-12


def test_modes_move_at_the_speed_of_their_layer_and_stop():
    problem, values = _aligned((4, 4, 4, 4))
    form, rates = js.theory.MuonModes(), RATES[:, None]
    ends = np.asarray(form.arrival_times(problem), np.float64)
    # Which arrival is which mode's, the order of modes leaves open: at one of them its product is its target.
    products = np.prod(values[:, :, None] + rates[:, :, None] * ends, axis=0)
    np.testing.assert_allclose(abs(products / STRENGTHS[:, None] - 1).min(axis=1), 0, atol=cases.eps(100))
    early = 0.5 * min(ends)
    weights = form.at(problem, jnp.asarray(early)).params.weights
    for layer, rate, row in zip(weights, RATES, values, strict=True):
        singular = np.linalg.svd(np.asarray(layer), compute_uv=False)
        np.testing.assert_allclose(singular, np.sort(row + rate * early)[::-1], rtol=cases.eps(300))
    end = js.solve(problem, form, [jnp.inf], observe=js.observe.loss())["loss"]
    assert float(end[0]) < cases.eps(1e3) ** 1.5


def test_modes_above_their_target_fall():
    problem, values = _aligned((4, 4, 4), scale=2.5)
    above = np.prod(values, axis=0) > STRENGTHS
    assert above.any()
    assert not above.all()
    loss = js.solve(problem, js.theory.MuonModes(), [0.0, 0.2, jnp.inf], observe=js.observe.loss())["loss"]
    assert float(loss[0]) > float(loss[1]) > float(loss[2])
    stepped = _stepped(problem, 400, 0.2 / 400)
    solved = js.theory.MuonModes().at(problem, jnp.asarray(0.2)).params.weights
    for one, other in zip(solved, stepped, strict=True):
        np.testing.assert_allclose(one, other, atol=3e-3)


def test_gradient_flow_learns_in_another_order():
    problem, _ = _aligned((4, 4, 4))
    form = js.theory.MuonModes()
    last = float(form.arrival_times(problem).max())
    assert float(js.solve(problem, form, [last], observe=js.observe.loss())["loss"][0]) < 1e-6
    assert float(js.solve(problem, js.GradientFlow(), [last], observe=js.observe.loss())["loss"][0]) > 1e-3


def test_the_check_measures_how_far_a_start_is_from_aligned():
    form, off = js.theory.MuonModes(), []
    for tilt in (1e-3, 1e-2):
        problem, _ = _aligned((4, 4, 4), tilt=tilt)
        validity = form.check(problem)
        assert not bool(validity.exact)
        assert "every mode is alone in all layers" in validity.missed()
        off.append(max(float(a.violation) for a in validity.assumptions))
    assert 3 < off[1] / off[0] < 30  # in proportion to the share of the weights
    assert js.exact(_aligned((4, 4, 4))[0]).name != "MuonModes"  # which is no gradient flow


def test_derivatives_of_arrival():
    problem, _ = _aligned((4, 4, 4))
    total = lambda y: jnp.sum(js.theory.MuonModes().arrival_times(js.Problem(problem.net, problem.x, y)))
    step = cases.eps() ** (1 / 3)
    slope = jax.jvp(total, (problem.y,), (problem.y,))[1]
    numeric = (total((1 + step) * problem.y) - total((1 - step) * problem.y)) / (2 * step)
    np.testing.assert_allclose(slope, numeric, rtol=300 * step**2)


def test_other_networks_are_refused():
    problem, _ = _aligned((4, 4, 4))
    sizes = {"in_size": 4, "out_size": 4, "width_size": 4, "depth": 1, "activation": "tanh"}
    net = js.nets.MLP(scaling=js.nets.Scaling.ntk(), key=jax.random.key(0), **sizes)
    with pytest.raises(js.NotApplicable, match="linear activation"):
        js.theory.MuonModes().arrival_times(js.Problem(net, problem.x, problem.y))
