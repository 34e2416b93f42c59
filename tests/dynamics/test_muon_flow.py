"""The flow of orthogonalized gradients: against the closed form, and against steps with exact polar factors."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxsolve as js
from tests import cases
from tests.inside import smoothed_polar


WATCHED = [js.observe.parameters(), js.observe.outputs(), js.observe.loss()]
STRENGTHS = np.array([3.0, 1.4, 0.6, 0.3])
RATES = np.array([1.0, 0.5, 2.0])


def muon(h, vectors=lambda g: g):
    """Steps of size h with exact polar factors, on the range of the gradient."""

    def one(g):
        if g.ndim < 2:
            return -h * vectors(g)
        u, s, v = jnp.linalg.svd(g.reshape(g.shape[0], -1), full_matrices=False)
        return -h * ((u * (s > 100 * cases.eps() * s[0])[None, :]) @ v).reshape(g.shape)

    return js.Descent(optax.stateless(lambda updates, params: jax.tree.map(one, updates)), rate=h)


def aligned(seed=0):
    """Three layers of four modes, in frames of their own."""
    draws = np.random.default_rng(seed)
    frames = [np.linalg.qr(draws.normal(size=(4, 4)))[0] for _ in range(4)]
    values = draws.uniform(0.06, 0.3, (3, 4))
    layers = [(up * row) @ down.T for row, down, up in zip(values, frames[:-1], frames[1:], strict=True)]
    scaling = js.nets.Scaling([1.0] * 3, sigma=[1.0] * 3, eta=RATES)
    net = js.nets.DeepLinear(
        in_size=4,
        out_size=4,
        width_size=4,
        depth=2,
        scaling=scaling,
        init=js.nets.Given(layers),
        key=jax.random.key(0),
    )
    x = 2 * np.linalg.qr(draws.normal(size=(4, 4)))[0]
    return js.Problem(net, x, x @ ((frames[-1] * STRENGTHS) @ frames[0].T).T)


def two_layers(size):
    """A linear network of two layers from a random start."""
    keys = jax.random.split(jax.random.key(0), 3)
    layers = [size * jax.random.normal(key, (5, 5)) for key in keys[:2]]
    scaling = js.nets.Scaling([1.0] * 2, sigma=[1.0] * 2, eta=[1.0] * 2)
    net = js.nets.DeepLinear(
        in_size=5, out_size=5, width_size=5, depth=1, scaling=scaling, init=js.nets.Given(layers), key=keys[0]
    )
    x = 5**0.5 * jnp.eye(5)
    turn = jnp.linalg.qr(jax.random.normal(keys[2], (5, 5)))[0]
    return js.Problem(net, x, x @ (turn * jnp.arange(1.0, 6.0)[None, :] / 5))


def dense():
    keys = jax.random.split(jax.random.key(0), 2)
    x = jax.random.normal(keys[0], (20, 4))
    net = js.nets.MLP(
        in_size=4,
        out_size=1,
        width_size=8,
        depth=2,
        activation="tanh",
        bias=True,
        scaling=js.nets.Scaling.standard(),
        key=keys[1],
    )
    return js.Problem(net, x, jnp.sign(x[:, :1] * x[:, 1:2]))


def apart(one, other, observable="parameters"):
    difference = np.asarray(one[observable] - other[observable])
    return np.linalg.norm(difference.reshape(len(difference), -1), axis=1)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4), (1, 6)])
def test_the_polar_factor_has_derivatives_where_singular_values_are_equal(shape, getkey):
    frames = [jnp.linalg.qr(jax.random.normal(getkey(), (size, size)))[0] for size in shape]
    values = jnp.array([2.0, 2.0, 0.0, 0.0])[: min(shape)]
    a = (frames[0][:, : min(shape)] * values[None, :]) @ frames[1][:, : min(shape)].T
    e, step = jax.random.normal(getkey(), shape), cases.eps() ** (1 / 3)
    for eps in (0.5, 0.1):
        polar = lambda a, eps=eps: smoothed_polar(a, jnp.asarray(eps, a.dtype))
        slope = jax.jvp(polar, (a, eps), (e, 1.0))[1]
        numeric = (polar(a + step * e, eps + step) - polar(a - step * e, eps - step)) / (2 * step)
        np.testing.assert_allclose(slope, numeric, atol=100 * (step / eps) ** 2)
        along, pulled = jax.jvp(polar, (a,), (e,))[1], jax.vjp(polar, a)[1](e)[0]
        np.testing.assert_allclose(jnp.sum(pulled * e), jnp.sum(e * along), rtol=cases.eps(1e4))


@pytest.mark.slow
@pytest.mark.x64_only
def test_aligned_modes_are_those_of_the_closed_form():
    """Once modes have arrived, errors are in proportion to eps; before, they are those of the steps."""
    problem, form = aligned(), js.theory.MuonModes()
    ends = np.sort(np.asarray(form.arrival_times(problem)))
    ts = np.array([0.9 * ends[0], (ends[0] + ends[1]) / 2, (ends[2] + ends[3]) / 2, 1.3 * ends[3]])
    solved = js.solve(problem, form, ts, observe=WATCHED)
    errors = [apart(js.solve(problem, js.MuonFlow(eps=eps), ts, observe=WATCHED), solved) for eps in (1e-5, 4e-7)]
    assert errors[1][0] < 1e-7
    assert np.all(errors[1] < 1e-6)
    np.testing.assert_allclose(errors[0][1:] / errors[1][1:], 25, rtol=0.1)
    plain = apart(js.solve(problem, js.GradientFlow(), ts, observe=WATCHED), solved)
    assert np.all(plain > 0.3)


def test_at_the_default_accuracy():
    """In both precisions, by the default of each."""
    problem, form = aligned(), js.theory.MuonModes()
    ts = np.array([0.2, 1.0, 1.6])
    solved = js.solve(problem, form, ts, observe=WATCHED)
    flow = js.solve(problem, js.MuonFlow(), ts, observe=WATCHED)
    assert np.all(apart(flow, solved) < 50 * (1e-4 if cases.X64 else 3e-3))
    assert flow.stats.gradient_evaluations < 10_000


@pytest.mark.slow
@pytest.mark.x64_only
def test_steps_chatter_about_the_flow_by_their_size():
    problem = aligned()
    end = 1.2 * float(js.theory.MuonModes().arrival_times(problem).max())
    size = end / 10_000
    ts = size * np.array([3000, 6000, 10_000])
    steps, flow = (js.solve(problem, one, ts, observe=WATCHED) for one in (muon(size), js.MuonFlow(eps=1e-6)))
    ends = js.theory.MuonModes().at(problem, jnp.asarray(jnp.inf)).params.weights
    largest = [np.linalg.norm(w, 2) for w in ends]
    # Each layer's last step is off by its rate times the others' weights.
    chatter = size * sum(RATES[i] * np.prod(np.delete(largest, i)) for i in range(3))
    product = np.abs(np.asarray(steps["outputs"] - flow["outputs"])) / 2  # the inputs' singular values are 2
    assert np.max(product) < 2 * chatter


@pytest.mark.slow
@pytest.mark.x64_only
def test_from_a_small_random_start_steps_come_to_the_flow_in_first_order():
    """Two layers from 1e-4. What tells weights apart is the first step, if it is longer than the start."""
    problem, ts = two_layers(1e-4), np.array([0.3, 0.6, 0.9])
    flow = js.solve(problem, js.MuonFlow(eps=1e-6), ts, observe=WATCHED)
    errors = [
        np.linalg.norm(apart(js.solve(problem, muon(h), ts, observe=WATCHED), flow, "outputs"))
        for h in (1e-2, 1e-3, 1e-4)
    ]
    assert errors[2] < 1e-3
    orders = np.log10(errors[:2]) - np.log10(errors[1:])
    np.testing.assert_allclose(orders, 1, atol=0.3)


@pytest.mark.slow
@pytest.mark.x64_only
@pytest.mark.parametrize("sign", [False, True])
def test_a_network_with_activations_and_biases(sign):
    problem, ts = dense(), np.array([0.2, 0.5, 1.0])
    flow = js.solve(problem, js.MuonFlow(eps=1e-8, sign_of_vectors=sign), ts, observe=WATCHED)
    steps = lambda h: js.solve(problem, muon(h, jnp.sign if sign else lambda g: g), ts, observe=WATCHED)
    errors = [np.linalg.norm(apart(steps(h), flow, "outputs")) for h in (1e-2, 1e-3, 1e-4)]
    orders = np.log10(errors[:2]) - np.log10(errors[1:])
    np.testing.assert_allclose(orders, 1, atol=0.3)
    other = js.solve(problem, js.MuonFlow(eps=1e-8, sign_of_vectors=not sign), ts, observe=WATCHED)
    assert np.linalg.norm(apart(other, flow, "outputs")) > 30 * errors[2]


def test_kernels_of_convolutions_are_matrices_of_outputs_and_the_rest(getkey):
    x = jax.random.normal(getkey(), (6, 2, 5))

    def network(params, x):
        windows = jnp.stack([x[:, i : i + 3] for i in range(3)])
        hidden = jnp.tanh(jnp.einsum("ocw,pcw->op", params["kernel"], windows) + params["bias"][:, None])
        return jnp.sum(params["out"] * hidden)[None]

    params = {
        "kernel": jax.random.normal(getkey(), (3, 2, 3)),
        "bias": jax.random.normal(getkey(), (3,)),
        "out": jax.random.normal(getkey(), (3, 3)) / 3,
    }
    net = js.nets.Function(network, params)
    problem = js.Problem(net, x, jnp.sign(x[:, 0, :1]))
    ts = np.array([0.05, 0.1])
    flow, steps = (js.solve(problem, one, ts, observe=WATCHED) for one in (js.MuonFlow(), muon(1e-3)))
    moved = float(apart(flow, js.solve(problem, js.MuonFlow(), [0.0, 0.0], observe=WATCHED))[1])
    assert apart(flow, steps)[1] < 0.02 * moved


@pytest.mark.slow
def test_in_batches_and_up_to_a_condition():
    problem = two_layers(0.1)
    loss = lambda eps: js.solve(problem, js.MuonFlow(eps=eps), 0.3)["loss"]
    together = jax.jit(jax.vmap(loss))(jnp.array([1e-2, 1e-3]))
    np.testing.assert_allclose(together, [loss(1e-2), loss(1e-3)], rtol=1e-4)
    run = js.solve(problem, js.MuonFlow(until=js.until.loss_below(0.1)), [0.0, jnp.inf])
    assert run.result == js.RESULTS.event
    np.testing.assert_allclose(run["loss"][-1], 0.1, rtol=1e-3)


def test_at_rest_it_stays():
    problem = two_layers(0.0)
    run = js.solve(problem, js.MuonFlow(), [1.0], observe=WATCHED)
    np.testing.assert_array_equal(run["parameters"], 0)


def test_the_certificate_has_the_errors_of_steps():
    """Measured, so that they are below the tolerance, not at it."""
    certificate = js.solve(aligned(), js.MuonFlow(), [1.0]).certificate
    assert certificate is not None
    assert 0.1 < certificate.step_error < 1


def test_what_is_refused():
    with pytest.raises(ValueError, match="eps"):
        js.MuonFlow(eps=0.0)
    with pytest.raises(TypeError, match="sign_of_vectors"):
        js.MuonFlow(sign_of_vectors=1)  # pyright: ignore[reportArgumentType]
    net = js.nets.MLP(
        in_size=2,
        out_size=1,
        width_size=4,
        depth=1,
        activation="tanh",
        scaling=js.nets.Scaling.mup(),
        key=jax.random.key(0),
    )
    with pytest.raises(ValueError, match="mup"):
        js.solve(js.Problem(net, jnp.eye(2), jnp.ones((2, 1))), js.MuonFlow(), 1.0)
    result = jax.jit(lambda eps: js.solve(two_layers(0.1), js.MuonFlow(eps=eps), 1.0, throw=False).result)(-1.0)
    assert result == js.RESULTS.invalid
