"""`js.optimal_rate`: the minimum of exact polynomials, and where the best rates of wide networks go."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from numpy.polynomial import Chebyshev, Polynomial

import jaxsolve as js
from tests.cases import assert_fails, eps


X = np.array([[1.0, 0.3], [-0.4, 0.8], [0.6, -1.1]])
Y = np.array([[1.0], [0.2], [-0.9]])


def _problem(width=64, activation="linear", key=None, y=Y, **options):
    rule = js.nets.Scaling.mean_field(sigma=jnp.array([1.1, 0.8]), eta=jnp.array([0.7, 0.5]))
    key = jr.key(0) if key is None else key
    net = js.nets.MLP(in_size=2, out_size=1, width_size=width, depth=1, activation=activation, scaling=rule, key=key)
    return js.Problem(net, X, y, **options)


def _loss(rate, steps, *, moves=True):
    """Of the infinitely wide linear network: the second moments of a neuron's weights obey equations of their own."""
    scaling, width = _problem().net.scaling, 64
    m, sigma, eta = (np.asarray(one, float) for one in (scaling.multiplier, scaling.sigma, scaling.eta))
    moments = np.diag([(m[0] * sigma[0]) ** 2] * 2 + [(m[1] * width * sigma[1]) ** 2])
    speed = m[0] ** 2 * eta[0] / width, m[1] ** 2 * width * eta[1]
    start, f = moments, np.zeros(3)
    for _ in range(steps):
        push, step = X.T @ (Y[:, 0] - f) / 3, np.eye(3)
        step[2, :2], step[:2, 2] = rate * speed[0] * push, rate * speed[1] * push
        if moves:
            moments = step.T @ moments @ step
            f = X @ moments[:2, 2]
        else:  # the kernel of the start
            f = f + X @ (step.T @ start @ step)[:2, 2]
    return np.mean((f - Y[:, 0]) ** 2) / 2


def _best(steps, degree, **options):
    """The rate and the loss at the lowest point of the polynomial."""
    loss = np.vectorize(lambda rate: _loss(rate, steps, **options))
    exact = Chebyshev.interpolate(loss, degree, domain=[0, 5])
    np.testing.assert_allclose(exact(2.345), loss(2.345), rtol=1e-5)  # it is a polynomial of this degree
    places = exact.deriv().roots()
    places = places[(abs(places.imag) < 1e-9) & (places.real > 0)].real
    rate = places[np.argmin(exact(places))]
    return rate, exact(rate)


# Measured in float64 and float32: 1e-10 and 6e-5; a minimum is known to the root of rounding.
@pytest.mark.parametrize(("steps", "degree"), [(1, 2), (2, 12)])
def test_it_is_the_lowest_point_of_the_exact_polynomial(steps, degree):
    best = js.optimal_rate(_problem(), steps)
    np.testing.assert_allclose((best.rate, best.loss), _best(steps, degree), rtol=max(1e-9, eps() ** 0.5))
    assert best.loss == np.min(best.losses)
    assert np.all(np.diff(best.rates) > 0)
    if steps == 2:  # features have moved after the first step
        assert_fails(lambda: np.testing.assert_allclose(best.rate, _best(steps, degree, moves=False)[0], rtol=0.1))


@pytest.mark.slow
def test_gradient_flow_has_no_best_rate():
    """The longer it goes on, the lower the loss."""
    best = js.optimal_rate(_problem(), 2)
    flow = [float(js.solve(_problem(), js.RichLimit(nodes=40), 2 * rate)["loss"]) for rate in best.rates]
    assert np.argmin(flow) == len(flow) - 1
    assert_fails(lambda: np.testing.assert_allclose(best.rates[np.argmin(flow)], best.rate, rtol=0.1))


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["linear", "tanh"])
def test_the_best_rates_of_networks_come_near_like_one_over_width(activation):
    steps = 2
    limit = js.RichLimit(samples=2**16)
    best = js.optimal_rate(_problem(activation=activation), steps, limit=limit).rate
    shifts, widths = np.linspace(-0.3, 0.3, 7), [32, 64, 128, 256]

    def drift(width):
        def one(key):
            problem = _problem(width, activation, key, centered=True)
            after = lambda rate: js.solve(problem, js.Descent(optax.sgd(rate)), steps * rate, throw=False)["loss"]
            return jax.vmap(after)(jnp.asarray(best * np.exp(shifts)))

        keys = jr.split(jr.key(width), 16 * width)
        losses = np.mean(jax.jit(lambda keys: jax.lax.map(one, keys, batch_size=2**16 // width))(keys), axis=0)
        curve = Polynomial.fit(shifts, losses, 5)
        fine = np.linspace(-0.3, 0.3, 6001)
        return fine[np.argmin(curve(fine))]

    drifts = np.abs([drift(width) for width in widths])
    exponent = np.polyfit(np.log(widths), np.log(drifts), 1)[0]
    np.testing.assert_allclose(exponent, -1, atol=0.2, err_msg=str(drifts))


def test_a_grid_of_ones_own():
    found, given = js.optimal_rate(_problem(), 1), js.optimal_rate(_problem(), 1, rates=[1.0, 3.0, 9.0])
    np.testing.assert_allclose(given.rate, found.rate, rtol=eps() ** 0.5)
    assert given.rates[0] == 1
    with pytest.raises(ValueError, match=r"is at the last rate, 0.5: give larger rates"):
        js.optimal_rate(_problem(), 1, rates=[0.1, 0.2, 0.5])
    with pytest.raises(ValueError, match=r"is at the first rate, 4: give smaller rates"):
        js.optimal_rate(_problem(), 1, rates=[4.0, 4.5, 5.0])
    with pytest.raises(ValueError, match=r"no rate from 50 to 200 lowers the loss"):
        js.optimal_rate(_problem(), 1, rates=[50.0, 100.0, 200.0])


def test_what_has_no_best_rate_is_refused():
    with pytest.raises(ValueError, match="training starts at a minimum"):
        js.optimal_rate(_problem(y=0 * Y), 1)
    lazy = js.nets.MLP(
        in_size=2, out_size=1, width_size=64, depth=1, activation="linear", scaling=js.nets.Scaling.ntk(), key=jr.key(0)
    )
    with pytest.raises(js.NotApplicable, match="richness"):
        js.optimal_rate(js.Problem(lazy, X, Y), 1)


@pytest.mark.usefixtures("as_users")
def test_bad_input_is_named():
    with pytest.raises(TypeError, match="problem must be"):
        js.optimal_rate(_problem().net, 1)
    with pytest.raises(ValueError, match="steps must be an integer >= 1, got 0"):
        js.optimal_rate(_problem(), 0)
    with pytest.raises(TypeError, match=r"limit must be a js.RichLimit, or None"):
        js.optimal_rate(_problem(), 1, limit=js.GradientFlow())  # pyright: ignore[reportArgumentType]
    for bad in ([1.0, 2.0], [1.0, 1.0, 2.0], [0.0, 1.0, 2.0], [1.0, np.nan, 2.0]):
        with pytest.raises(ValueError, match="rates must be three or more finite numbers > 0, ascending"):
            js.optimal_rate(_problem(), 1, rates=bad)
