"""Saddle to saddle: order, times and levels of drops against gradient flow from small weights."""

import functools

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsolve as js
from tests import cases


SIZE = 1e-6


def _diagonal(key, size, n=30, inputs=5):
    """f(x) = sum_i u_i v_i x_i on Gaussian inputs with a Gaussian teacher."""
    keys = jax.random.split(key, 3)
    x = jax.random.normal(keys[0], (n, inputs))
    weights = size * jax.random.normal(keys[1], (inputs, 2))
    net = js.nets.Neurons(
        lambda theta, place, x: (theta[0] * theta[1] * (place @ x))[None], weights, degree=2, constants=jnp.eye(inputs)
    )
    return js.Problem(net, x, x @ jax.random.normal(keys[2], (inputs,)))


def _scaling(size, arrays=2):
    return js.nets.Scaling([1.0] * arrays, [size] * arrays, [1.0] * arrays)


def _linear(key, size, inputs=4):
    """A fully connected linear network of 10 neurons on whitened inputs, with a Gaussian matrix as its target."""
    keys = jax.random.split(key)
    net = js.nets.TwoLayerLinear(in_size=inputs, out_size=inputs, width_size=10, scaling=_scaling(size), key=keys[0])
    return js.Problem(net, inputs**0.5 * jnp.eye(inputs), jax.random.normal(keys[1], (inputs, inputs)))


def _attention(key, size):
    data = js.data.in_context_moments(jnp.array([0.4, 0.3, 0.2, 0.1]), 31)
    net = js.nets.LinearAttention(in_shape=data.x.shape[1:], heads=6, rank=1, scaling=_scaling(size, 3), key=key)
    return js.Problem(net, *data.train)


def _relu(key, size):
    keys = jax.random.split(key)
    x = jax.random.normal(keys[0], (40, 3))
    net = js.nets.MLP(
        in_size=3, out_size=1, width_size=12, depth=1, activation="relu", scaling=_scaling(size), key=keys[1]
    )
    return js.Problem(net, x, 2 * jax.nn.relu(x[:, :1]) - jax.nn.relu(x[:, 1:2]))


def _drops(problem, most=8):
    """Those that come."""
    found = js.AlternatingFlow(drops=most).drops(problem)
    count = int(np.isfinite(found.times).sum())
    return np.asarray(found.times)[:count], np.asarray(found.losses)[: count + 1], found


def _when_crossed(ts, values, level):
    place = int(np.argmax(values >= level))
    assert place > 0
    return np.interp(level, values[place - 1 : place + 1], ts[place - 1 : place + 1])


def _flow(problem, last, size, observe):
    # Errors must stay small beside weights that have hardly grown; kinks are too many for such tolerances.
    smooth = getattr(problem.net, "activation", js.nets.linear) is js.nets.linear
    flow = js.GradientFlow(diffrax.Dopri8(), rtol=1e-8, atol=1e-12 * size**2) if smooth else js.GradientFlow()
    ts = np.linspace(0, last, 2000)
    return ts, np.asarray(js.solve(problem, flow, ts, observe=observe)[observe.name])


def _when_losses_drop(problem, times, losses, size):
    """When a quarter of each drop of the loss is left."""
    ts, loss = _flow(problem, 1.5 * times[-1], size, js.observe.loss())
    left = losses[1:] + (losses[:-1] - losses[1:]) / 4
    return np.array([_when_crossed(ts, -loss, -level) for level in left])


def _when_coordinates_rise(problem, times, found, size):
    """When each coordinate of a diagonal network is at half of what it has after its drop."""
    ts, weights = _flow(problem, 1.5 * times[-1], size, js.observe.parameters())
    products = np.prod(weights.reshape(len(ts), -1, 2), axis=2)
    levels = np.prod(np.asarray(found.params.params), axis=2)
    ends = [(int(place), levels[drop + 1, int(place)]) for drop, place in enumerate(found.neurons[: len(times)])]
    return np.array([_when_crossed(ts, products[:, place] * np.sign(end), abs(end) / 2) for place, end in ends])


@pytest.mark.x64_only  # float32 keeps too little of what is small beside a direction
@pytest.mark.parametrize("draws", cases.slow_after(1, [range(2), range(2, 20)]))
@pytest.mark.parametrize("make", [_diagonal, _linear])
def test_order_and_times_are_those_of_gradient_flow(make, draws):
    """In 20 of 20 draws the order is right and all times are within 5 %; half of them within half a percent."""
    errors = []
    for draw in draws:
        problem = make(jax.random.key(draw), SIZE)
        times, losses, found = _drops(problem)
        if make is _diagonal:
            measured = _when_coordinates_rise(problem, times, found, SIZE)
        else:
            measured = _when_losses_drop(problem, times, losses, SIZE)
        assert len(times) >= 4
        assert np.all(np.diff(times) > 0)
        assert np.all(np.diff(measured) > 0)
        errors.extend(np.abs(times / measured - 1))
    assert max(errors) < 0.05
    assert np.median(errors) < 0.006


@pytest.mark.x64_only
@pytest.mark.slow
def test_errors_fall_like_one_over_the_logarithm_of_the_size():
    """Times are off by a constant while they grow like log(1/size): after twice the wait, half the relative error."""
    off, relative = [], []
    for size in (1e-4, 1e-6, 1e-8):
        here = []
        for draw in range(4):
            problem = _linear(jax.random.key(draw), size)
            times, losses, _ = _drops(problem)
            measured = _when_losses_drop(problem, times, losses, size)
            here.append((np.abs(times - measured).mean(), np.abs(times / measured - 1).mean()))
        off.append(np.mean(here, axis=0)[0])
        relative.append(np.mean(here, axis=0)[1])
    assert max(off) < 1.1 * min(off)
    assert relative[2] < 0.5 * relative[0]


@pytest.mark.x64_only
@pytest.mark.slow
def test_heads_of_linear_attention():
    """Degree 3: times are right to a percent from weights of 1e-3, losses are those of the formula."""
    for draw in range(3):
        problem = _attention(jax.random.key(draw), 1e-3)
        times, losses, _ = _drops(problem, 4)
        expected = js.theory.in_context_losses(jnp.array([0.4, 0.3, 0.2, 0.1]), 31)
        np.testing.assert_allclose(2 * losses, expected, rtol=1e-9)
        ts = np.linspace(0, 1.3 * times[-1], 4000)
        loss = np.asarray(js.solve(problem, js.GradientFlow(), ts)["loss"])
        left = losses[1:] + (losses[:-1] - losses[1:]) / 4
        measured = np.array([_when_crossed(ts, -loss, -level) for level in left])
        np.testing.assert_allclose(times, measured, rtol=0.01)


@pytest.mark.x64_only
@pytest.mark.slow
def test_neurons_with_kinks():
    for draw in range(3):
        problem = _relu(jax.random.key(draw), SIZE)
        times, losses, _ = _drops(problem)
        assert len(times) == 2  # of the teacher
        assert losses[-1] < 1e-12
        measured = _when_losses_drop(problem, times, losses, SIZE)
        np.testing.assert_allclose(times, measured, rtol=0.05)


@pytest.mark.x64_only
@pytest.mark.slow
def test_modular_addition_learns_strong_fourier_modes_first():
    """Quadratic neurons, of degree 3, on a + b modulo 5, where numbers are shifts of a wave of two frequencies."""
    size, modulus, count = 1e-3, 5, 8
    place = np.arange(modulus)
    wave = 2.0 * np.cos(2 * np.pi * place / modulus) + 0.9 * np.cos(4 * np.pi * place / modulus + 0.4)
    shifted = np.stack([np.roll(wave, shift) for shift in place]) / np.sqrt(modulus)
    first, second = np.divmod(np.arange(modulus**2), modulus)
    x = np.concatenate([shifted[first], shifted[second]], axis=1)
    keys = jax.random.split(jax.random.key(0))
    weights = {
        "u": size * jax.random.normal(keys[0], (count, 2 * modulus)),
        "w": size * jax.random.normal(keys[1], (count, modulus)),
    }
    net = js.nets.Neurons(lambda theta, x: theta["w"] * (theta["u"] @ x) ** 2, weights, degree=3)
    problem = js.Problem(net, x, shifted[(first + second) % modulus])
    times, losses, found = _drops(problem, 4)
    assert len(times) == 4
    for drop, neuron in enumerate(found.neurons):
        waves = np.abs(np.fft.fft(found.params.params["w"][drop + 1, neuron]))
        assert waves[2] < 0.05 * waves[1]
    ts = np.linspace(0, 1.3 * times[-1], 1000)
    loss = np.asarray(js.solve(problem, js.GradientFlow(diffrax.Dopri8()), ts)["loss"])
    left = losses[1:] + (losses[:-1] - losses[1:]) / 4
    np.testing.assert_allclose(times, [_when_crossed(ts, -loss, -level) for level in left], rtol=0.05)


def test_levels_are_the_best_of_each_rank():
    """Eckart and Young: what is left are the smaller singular values."""
    problem = _linear(jax.random.key(3), SIZE)
    _, losses, _ = _drops(problem)
    squares = np.linalg.svd(np.asarray(problem.y), compute_uv=False) ** 2 / (2 * len(problem.y))
    left = np.array([squares[rank:].sum() for rank in range(5)])
    check = functools.partial(np.testing.assert_allclose, losses, rtol=1e-3, atol=cases.eps(1e3))
    check(left)
    cases.assert_fails(lambda: check(left[::-1]))


def test_rates_are_those_of_the_layers():
    """W/sqrt(eta) trains at the rate 1: the same network in other coordinates has the same drops."""
    problem, eta = _linear(jax.random.key(4), SIZE), (4.0, 0.25)
    w = [weight * rate**0.5 for weight, rate in zip(problem.net.weights, eta, strict=True)]
    multiplier = [rate**-0.5 for rate in eta]
    scaling = js.nets.Scaling(multiplier, [1.0, 1.0], [*eta])
    net = js.nets.TwoLayerLinear(
        in_size=4, out_size=4, width_size=10, scaling=scaling, init=js.nets.Given(w), key=jax.random.key(0)
    )
    same = js.Problem(net, problem.x, problem.y)
    np.testing.assert_allclose(_drops(same)[0], _drops(problem)[0], rtol=2e-2 if cases.eps() > 1e-10 else 1e-6)
    faster = js.Problem(
        js.nets.TwoLayerLinear(
            in_size=4, out_size=4, width_size=10, scaling=_scaling(SIZE), init=js.nets.Given(w), key=jax.random.key(0)
        ),
        problem.x,
        problem.y,
    )
    assert np.abs(_drops(faster)[0][0] / _drops(problem)[0][0] - 1) > 1e-3


def _uneven(kind):
    """A network in which every hyperparameter is another one, from small weights."""
    if kind == "neurons":
        return cases.mlp(KEY, "leaky_relu", depth=1, bias=False, sigma=np.array([1e-4, 2e-4]))
    scaling = cases.scaling(3, sigma=np.array([1e-2, 2e-2, 3e-2]))
    return js.nets.LinearAttention(in_shape=(2, 4), heads=3, rank=2, scaling=scaling, key=KEY)


@pytest.mark.parametrize("kind", cases.slow_after(1, ["heads", "neurons"]))
def test_losses_are_those_of_the_network_at_these_parameters(kind):
    net = _uneven(kind)
    x = jax.random.normal(jax.random.key(1), (20, *net.in_shape))
    problem = js.Problem(net, x, jax.random.normal(jax.random.key(2), (20, net.out_size)))
    found = js.AlternatingFlow(drops=2).drops(problem)
    assert np.all(np.diff(found.losses) < 0)
    np.testing.assert_allclose(jax.vmap(problem.objective)(found.params), found.losses, rtol=cases.eps(100))


def test_runs_show_plateaus():
    problem = _linear(jax.random.key(3), SIZE)
    times, losses, found = _drops(problem)
    middles = np.concatenate([[0], times * 1.01])
    run = js.solve(problem, js.AlternatingFlow(), middles)
    np.testing.assert_allclose(run["loss"], losses, rtol=1e-4, atol=cases.eps(1e3))
    at_end = js.solve(problem, js.AlternatingFlow(), jnp.inf, observe=js.observe.outputs())
    np.testing.assert_allclose(at_end["outputs"], problem.y, atol=1e-2)
    assert run.final.params.weights[0].shape == problem.net.weights[0].shape
    assert found.neurons[len(times)] == -1


def test_inside_other_programs():
    """Two sizes in one program; a smaller start waits longer, by the logarithm of the ratio over the growth."""
    first = lambda size: js.AlternatingFlow(drops=1).drops(_linear(jax.random.key(3), size)).times[0]
    small, large = jax.jit(jax.vmap(first))(jnp.array([1e-6, 1e-4]))
    problem = _linear(jax.random.key(3), 1.0)
    growth = 2 * np.linalg.svd(np.asarray(problem.y), compute_uv=False)[0] * 4**0.5 / 4
    np.testing.assert_allclose(small - large, 2 * np.log(100) / growth, rtol=1e-2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"net": lambda: js.nets.LinearAttention(in_shape=(2, 3), heads=2, scaling=_scaling(0.1), key=KEY)}, "neurons"),
        ({"net": lambda: cases.mlp(KEY, "tanh", depth=1, bias=False)}, "neurons"),
        ({"net": lambda: cases.mlp(KEY, "relu", depth=1, bias=True)}, "neurons"),
        ({"loss": js.losses.Logistic()}, "MSE"),
        ({"centered": True}, "not centered"),
    ],
)
def test_what_is_refused(change, message):
    net = change.pop("net", lambda: cases.mlp(KEY, "relu", depth=1, bias=False))()
    x = jnp.ones((4, *net.in_shape))
    problem = js.Problem(net, x, jnp.ones((4, net.out_size)), **change)
    with pytest.raises(js.NotApplicable, match=message):
        js.AlternatingFlow().drops(problem)


def test_another_degree_is_refused():
    net = js.nets.Neurons(lambda theta, x: theta[0] ** 3 * x, 1e-3 * jnp.ones((2, 1)), degree=2)
    with pytest.raises(js.NotApplicable, match="the outputs have another degree in the weights"):
        js.solve(js.Problem(net, jnp.ones((1, 1)), jnp.ones((1, 1))), js.AlternatingFlow(), 1.0)


def test_large_starts_are_not_small():
    with pytest.raises(js.NotApplicable, match="small outputs at the start"):
        js.solve(_linear(jax.random.key(0), 1.0), js.AlternatingFlow(), 1.0)
    assert not bool(js.AlternatingFlow().check(_linear(jax.random.key(0), SIZE)).exact)


KEY = jax.random.key(0)
