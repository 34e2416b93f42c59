"""The rich limit as a dynamics: against trained networks, the lazy limit, and one way to it against the other."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import jaxsolve as js
from jaxsolve.dynamics.wide import dmft
from tests.cases import assert_fails, eps


X = jr.normal(jr.key(0), (4, 2))
Y = jnp.sin(2 * X @ jnp.array([[1.0, -0.5], [0.3, 0.8]]))
TEST = (jr.normal(jr.key(1), (3, 2)), jnp.zeros((3, 2)))
RATE, STEPS = 0.4, 6
TIMES = RATE * np.arange(STEPS + 1)
WATCHED = [js.observe.outputs(), js.observe.test_outputs(), js.observe.kernel()]
LAYERS = [js.observe.feature_kernel(1), js.observe.gradient_kernel(1), js.observe.preactivation_quantiles(1)]


RULE = js.nets.Scaling.mean_field(0.7, sigma=1.1)


def _problem(width, depth, activation, rule: js.nets.Scaling | js.nets.ScalingRule = RULE, x=X):
    net = js.nets.MLP(
        in_size=x.shape[1],
        out_size=2,
        width_size=width,
        depth=depth,
        activation=activation,
        scaling=rule,
        key=jr.key(0),
    )
    return js.Problem(net, x, Y, test=TEST if x is X else None)


def _networks(width, depth, activation, seeds, dynamics, watched=WATCHED, ts=TIMES):
    """The mean over networks, and its standard error."""

    def one(key):
        net = js.nets.MLP(
            in_size=2, out_size=2, width_size=width, depth=depth, activation=activation, scaling=RULE, key=key
        )
        return js.solve(js.Problem(net, X, Y, test=TEST), dynamics, ts, observe=watched).observed

    runs = jax.jit(lambda keys: jax.lax.map(one, keys, batch_size=512))(jr.split(jr.key(3), seeds))
    mean = jax.tree.map(lambda leaf: np.asarray(leaf).mean(0), runs)
    error = jax.tree.map(lambda leaf: np.asarray(leaf).std(0, ddof=1) / seeds**0.5, runs)
    return mean, error


@pytest.mark.parametrize(
    ("activation", "depth", "rate"),
    [
        ("linear", 2, RATE),
        ("tanh", 1, RATE),
        pytest.param("tanh", 2, RATE, marks=pytest.mark.slow),
        pytest.param("tanh", 2, None, marks=pytest.mark.slow),
    ],
)
def test_wide_networks_go_to_it(activation, depth, rate):
    watched = [*WATCHED, *LAYERS]
    limit = js.RichLimit(rate=rate, nodes=40 if rate is None else STEPS)
    rich = js.solve(_problem(64, depth, activation), limit, TIMES, observe=watched)
    run = js.GradientFlow(diffrax.Tsit5()) if rate is None else js.Descent(optax.sgd(rate))
    mean, error = _networks(200, depth, activation, 32, run, watched)

    def agree(found):
        for name in found.observed:
            off, size = np.abs(mean[name] - np.asarray(found[name])), np.abs(found[name]).max()
            assert np.all(off < 5 * error[name] + 0.02 * size), name  # 1/N is 0.005

    agree(rich)
    assert_fails(lambda: agree(js.solve(_problem(200, depth, activation), js.FrozenKernel(), TIMES, observe=WATCHED)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("activation", "depth", "seeds"),  # the nearer networks are, the more of them
    [("linear", 2, 2**15), ("linear", 4, 2**13), ("relu", 1, 2**15), ("tanh", 1, 2**18), ("tanh", 2, 2**16)],
)
def test_networks_are_as_far_as_one_over_their_width(activation, depth, seeds):
    rate = RATE / 4 if depth == 4 else RATE  # at larger ones some narrow deep networks diverge
    ts, widths, far, spread = rate * np.arange(STEPS + 1), [8, 16, 32], [], []
    # As many samples as leave less of their choice than the networks have noise; of deep ones, memory bounds them.
    limit = js.RichLimit(rate=rate, nodes=STEPS, samples=2**19 if depth == 1 else 2**15)
    rich = js.solve(_problem(64, depth, activation), limit, ts, observe=WATCHED[:1])
    for width in widths:
        mean, error = _networks(width, depth, activation, seeds, js.Descent(optax.sgd(rate)), WATCHED[:1], ts)
        off = mean["outputs"][-1] - np.asarray(rich["outputs"])[-1]
        far.append(np.sqrt(np.mean(off**2)))
        spread.append(np.sqrt(np.mean(error["outputs"][-1] ** 2)))
    assert all(one > 3 * noise for one, noise in zip(far, spread, strict=True)), (far, spread)
    slope = np.polyfit(np.log(widths), np.log(far), 1)[0]
    assert abs(slope + 1) < 0.2
    single = np.polyfit(np.log(widths), np.log(spread), 1)[0]
    assert abs(single + 0.5) < 0.1


@pytest.mark.slow
def test_inputs_outside_of_the_span_of_the_training_set():
    """What a deep network makes of directions that training knows nothing of; without them outputs are larger."""
    keys = jr.split(jr.key(20), 3)
    x, other = jr.normal(keys[0], (4, 12)) / 6**0.5, jr.normal(keys[1], (3, 12))
    inside = jnp.array([[1.0, -1.0, 0.0, 0.0], [0.0, 1.0, 0.0, 1.0], [0.5, 0.0, 1.0, -1.0]]) @ x
    outside = other - other @ jnp.linalg.pinv(x) @ x

    def run(inputs, dynamics, key):
        net = js.nets.MLP(in_size=12, out_size=2, width_size=200, depth=2, activation="tanh", scaling=RULE, key=key)
        problem = js.Problem(net, x, Y, test=(inputs, jnp.zeros((3, 2))))
        return js.solve(problem, dynamics, TIMES, observe=WATCHED[1])["test_outputs"]

    one = lambda key: run(inside + 2 * outside, js.Descent(optax.sgd(RATE)), key)
    runs = np.asarray(jax.jit(lambda keys: jax.lax.map(one, keys))(jr.split(keys[2], 64)))
    size, error = np.abs(runs.mean(0)).max(), runs.std(0, ddof=1) / 8
    limit = lambda inputs: np.asarray(run(inputs, js.RichLimit(rate=RATE, nodes=STEPS), keys[2]))
    close = lambda found: np.all(np.abs(runs.mean(0) - found) < 5 * error + 0.02 * size)
    assert close(limit(inside + 2 * outside))
    assert not close(limit(inside))


@pytest.mark.slow
def test_the_sampling_error_of_deep_networks_is_how_far_seeds_differ():
    runs = [
        js.solve(
            _problem(64, 2, "tanh"),
            js.RichLimit(rate=RATE, nodes=STEPS, samples=512, seed=seed),
            TIMES[[-1]],
            observe=WATCHED[1],
        )
        for seed in range(8)
    ]
    found = np.array([run["test_outputs"][0] for run in runs])
    size = max(np.abs(np.asarray(Y)).max(), np.abs(found).max())
    said = np.mean([float(run.certificate.sampling_error) for run in runs if run.certificate is not None])
    assert 0.3 < said / (found.std(0, ddof=1).max() / size) < 3


@pytest.mark.slow
def test_sixty_pairs_of_wide_networks_are_near_it():
    # Bordelon & Pehlevan's sigma = (1, .8, 1.1), eta = (.15, .3, .1) at richness 1.5.
    richness, steps, seeds = 1.5, 25, 60
    speed = richness**2 * jnp.array([0.15, 0.3, 0.1])
    rule = js.nets.Scaling.mean_field(1 / richness, sigma=jnp.array([1.0, 0.8, 1.1]), eta=speed)
    x, y, ts = jr.normal(jr.key(10), (2, 6)), jnp.array([[1.0], [-1.0]]), np.arange(steps + 1.0)
    net = lambda key: js.nets.MLP(
        in_size=6, out_size=1, width_size=800, depth=2, activation="linear", scaling=rule, key=key
    )

    def run(net, dynamics):
        return js.solve(js.Problem(net, x, y), dynamics, ts, observe=js.observe.outputs())["outputs"]

    def pair(key):
        one = net(key)
        other = eqx.tree_at(lambda net: net.weights[-1], one, -one.weights[-1])
        return (run(one, js.Descent(optax.sgd(1.0))) + run(other, js.Descent(optax.sgd(1.0)))) / 2

    mean = jax.jit(lambda keys: jax.lax.map(pair, keys))(jr.split(jr.key(3), seeds)).mean(0)
    far = lambda limit: np.abs(mean - run(net(jr.key(0)), limit)).max()
    assert far(js.RichLimit(rate=1.0, nodes=steps)) < 0.006  # .0024 for a standard error of .0034
    assert far(js.RichLimit()) > 0.02  # descent in steps of this size is not the flow


IDENTITY = js.nets.leaky_relu(1.0)  # not recognized as linear, so that neurons are sampled


@pytest.mark.parametrize("rate", [None, RATE])
def test_samples_of_two_linear_layers_are_the_closed_equations(rate):
    watched = [*WATCHED, *LAYERS]
    exact = js.solve(_problem(64, 1, "linear"), js.RichLimit(rate=rate, nodes=40), TIMES, observe=watched)
    found = js.solve(_problem(64, 1, IDENTITY), js.RichLimit(rate=rate, samples=2048), TIMES, observe=watched)
    for name in exact.observed:
        size = np.abs(exact[name]).max()
        np.testing.assert_allclose(found[name], exact[name], atol=0.03 * size, err_msg=name)
    assert found.certificate is not None
    error = float(found.certificate.sampling_error)
    off = np.abs(np.asarray(found["test_outputs"] - exact["test_outputs"]))[-1].max()
    assert off < 5 * error < 0.1


@pytest.mark.slow
def test_samples_of_deep_linear_networks_are_the_exact_pass():
    watched = [*WATCHED, *LAYERS[:2]]  # quantiles of 512 samples are noisy
    exact = js.solve(_problem(64, 2, "linear"), js.RichLimit(rate=RATE, nodes=STEPS), TIMES, observe=watched)
    found = js.solve(
        _problem(64, 2, IDENTITY), js.RichLimit(rate=RATE, nodes=STEPS, samples=512), TIMES, observe=watched
    )

    def agree(found):
        for name in exact.observed:
            size = np.abs(exact[name]).max()
            np.testing.assert_allclose(found[name], exact[name], atol=2e-3 * size, err_msg=name)

    agree(found)  # what is left is what makes no direction of its own
    lazy = js.solve(
        _problem(64, 2, "linear", js.nets.Scaling.mean_field(0.7, sigma=1.1, eta=0.9)),
        js.RichLimit(rate=RATE, nodes=STEPS),
        TIMES,
        observe=watched,
    )
    assert_fails(lambda: agree(lazy))


def test_it_meets_the_lazy_limit_with_the_square_of_the_richness():
    def off(gamma):
        problem = _problem(64, 2, "linear", js.nets.Scaling.mean_field(gamma, eta=gamma**-2))
        limit = js.RichLimit(rate=RATE, nodes=STEPS, at_any_richness=True)
        rich = js.solve(problem, limit, TIMES, observe=js.observe.outputs())
        kernel = np.asarray(dmft.initial_kernel(dmft.normal_form(problem.net)) * X @ X.T)
        f = np.zeros(Y.shape)
        for _ in range(STEPS):
            f = f + RATE * kernel @ (np.asarray(Y) - f) / len(X)
        return np.abs(np.asarray(rich["outputs"][-1]) - f).max()

    lazy, lazier = off(30.0), off(300.0)
    assert abs(np.log10(lazy / lazier) - 2) < 0.1
    assert lazy < 0.05


def test_it_is_infinite_width_where_richness_is_small():
    """In gradient flow: under `ntk` the richness is N^-1/2, and the distance its square."""
    ts = np.array([0.0, 0.5, 2.0])

    def off(width):
        net = js.nets.MLP(
            in_size=2,
            out_size=2,
            width_size=width,
            depth=1,
            activation="linear",
            scaling=js.nets.Scaling.ntk(),
            key=jr.key(0),
        )
        problem = js.Problem(net, X, Y, centered=True)
        limits = js.RichLimit(nodes=400, at_any_richness=True), js.InfiniteWidth()
        rich, lazy = (js.solve(problem, limit, ts, observe=js.observe.outputs())["outputs"] for limit in limits)
        return np.abs(np.asarray(rich - lazy)).max()

    near, nearer = off(100), off(1600)
    assert abs(np.log(near / nearer) / np.log(4) - 2) < 0.1
    assert nearer < 1e-3


def test_inputs_of_many_dimensions_are_those_of_their_span():
    turned = jnp.concatenate([X, jnp.zeros((4, 5))], axis=1) @ jnp.linalg.qr(jr.normal(jr.key(5), (7, 7)))[0]
    scaling = js.nets.Scaling(multiplier=[0.5, 1 / 64], sigma=[1.1, 1.0], eta=[20.0, 60.0])
    few, many = (_problem(64, 1, "linear", scaling, x) for x in (X, turned))
    assert dmft.basis(turned, None).train.shape == (4, 4)
    runs = [js.solve(p, js.RichLimit(rate=RATE, nodes=STEPS), TIMES)["loss"] for p in (few, many)]
    np.testing.assert_allclose(runs[0], runs[1], rtol=eps(1e4))


@pytest.mark.slow
def test_kernels_per_neuron_of_networks_go_to_those_of_the_limit():
    watched = [js.observe.feature_kernel(2), js.observe.gradient_kernel(1)]
    rich = js.solve(_problem(400, 2, "linear"), js.RichLimit(nodes=2), [0.0], observe=watched)
    wide = _problem(400, 2, "linear")
    view = js.View(wide, jnp.zeros(()), wide.params)
    for one in watched:
        expected = rich[one.name][0]
        size = np.abs(expected).max()
        np.testing.assert_allclose(one(view), expected, atol=0.3 * size, err_msg=one.name)  # 4/sqrt(N) is 0.2
        assert_fails(lambda one=one, e=expected: np.testing.assert_allclose(400 * one(view), e, atol=0.3 * np.max(e)))


def test_in_a_sweep_and_a_comparison():
    def problem(sigma):
        return _problem(64, 1, "linear", js.nets.Scaling.mean_field(sigma=sigma))

    data = js.sweep(problem, {"sigma": [0.5, 1.0]}, js.RichLimit(nodes=8), TIMES[[0, -1]], progress=False)
    alone = js.solve(problem(1.0), js.RichLimit(nodes=8), TIMES[[0, -1]])["loss"]
    np.testing.assert_allclose(data["loss"].sel(sigma=1.0), alone, rtol=eps(1e3))
    # Lanes whose limit is lazy say so, whose numbers nobody knew when the program was made.
    for activation, depth in (("linear", 2), ("tanh", 1)):
        scaled = lambda sigma, a=activation, d=depth: _problem(64, d, a, js.nets.Scaling.mean_field(sigma=sigma))
        both = js.sweep(scaled, {"sigma": [1.0, 20.0]}, js.RichLimit(nodes=8), TIMES[[0, 1]], progress=False)
        assert both["result"].values.tolist() == [0, 6]  # successful, not_applicable
    table = js.compare(problem(0.5), [js.RichLimit(nodes=8), js.FrozenKernel()], TIMES[[0, -1]])
    assert table.errors["FrozenKernel"]["loss"] > 0.05


@pytest.mark.x64_only
def test_derivatives_in_the_gram_matrix_of_the_data():
    def outputs(gram):
        x = jnp.linalg.cholesky(gram)
        problem = js.Problem(
            js.nets.MLP(
                in_size=4, out_size=2, width_size=64, depth=2, activation="linear", scaling=RULE, key=jr.key(0)
            ),
            x,
            Y,
        )
        return js.solve(problem, js.RichLimit(rate=RATE, nodes=STEPS), TIMES[[-1]], observe=WATCHED[:1])["outputs"][0]

    wide = jr.normal(jr.key(6), (4, 6))
    gram, turn = wide @ wide.T / 6, jr.normal(jr.key(7), (4, 4))
    direction = turn + turn.T
    both = jax.jit(lambda gram, direction: jax.jvp(outputs, (gram,), (direction,)))
    _, found = both(gram, direction)
    above, below = (both(gram + step * direction, direction)[0] for step in (1e-6, -1e-6))
    moved = (above - below) / 2e-6
    np.testing.assert_allclose(found, moved, rtol=1e-7, atol=1e-9)
    # What is not symmetric has no Gram matrix of its own: half of it is missing in one triangle.
    _, half = both(gram, jnp.tril(direction))
    assert_fails(lambda: np.testing.assert_allclose(half, moved, rtol=1e-2))


def test_the_certificate_says_how_well_nodes_settle():
    """Those of descent weigh nothing themselves; a node of many time scales does not settle, as there are too few."""
    solve = lambda limit, ts: js.solve(_problem(64, 2, "linear"), limit, ts).certificate
    calm, descent = solve(js.RichLimit(nodes=40), TIMES), solve(js.RichLimit(rate=RATE, nodes=STEPS), TIMES)
    assert calm is not None
    assert descent is not None
    assert calm.residual < max(2e-10, eps(200))
    assert np.isnan(descent.residual)
    with pytest.warns(UserWarning, match=r"residual .*\)\. Give more nodes"):
        solve(js.RichLimit(nodes=2), [0.0, 4.0])


def test_nodes_of_samples_settle():
    """Also where a direction is new: to stop at the jump that it is leaves a thousand times as much."""
    x = jr.normal(jr.key(0), (4, 3))
    net = js.nets.MLP(
        in_size=3,
        out_size=1,
        width_size=32,
        depth=3,
        activation="tanh",
        scaling=js.nets.Scaling.mean_field(),
        key=jr.key(0),
    )
    run = js.solve(js.Problem(net, x, jnp.sin(x[:, :1])), js.RichLimit(nodes=40, samples=512), [0.0, 1.0, 10.0])
    assert run.certificate is not None
    assert run.certificate.residual < max(1.1e-5, eps(200))


def test_few_samples_are_said_to_be_the_reason():
    with pytest.warns(UserWarning, match=r"sampling error .*\)\. Take four times the samples for half the error"):
        js.solve(_problem(64, 1, "tanh"), js.RichLimit(rate=RATE, samples=64), TIMES)


def test_a_run_that_outgrows_its_arrays_begins_anew():
    """Depth and richness make more directions than most have: in the small arrays some are missed."""
    x, y = (jr.normal(jr.key(seed), (4, 2), jnp.float32).astype(float) for seed in (0, 1))
    scaling = js.nets.Scaling.mean_field(1 / 2.3, eta=2.3**2)
    problem = js.Problem(
        js.nets.MLP(in_size=2, out_size=2, width_size=64, depth=5, activation="linear", scaling=scaling, key=jr.key(2)),
        x,
        y,
    )
    limit, ts = js.RichLimit(rate=0.15, nodes=60), jnp.array([0.0, 9.0])
    whole: Any = limit.choose(problem, ts)
    smaller = whole.smaller(problem)
    state = jax.jit(lambda p: smaller.advance(p, smaller.init(p, ts), jnp.asarray(60)))(problem)
    assert smaller.outgrown(state)
    solve = lambda problem: js.solve(problem, limit, ts, observe=js.observe.outputs())
    run, inside = solve(problem), jax.jit(solve)(problem)  # which takes no small ones
    assert run.certificate is not None
    assert run.certificate.sampling_error == 0
    np.testing.assert_allclose(run["outputs"], inside["outputs"], atol=eps(100))


@pytest.mark.slow
def test_a_linear_network_that_oscillates_for_long_is_said_to_be_the_reason():
    scaling = js.nets.Scaling.mean_field(1 / 5, eta=25.0)
    x = jr.normal(jr.key(0), (1, 4))
    problem = js.Problem(
        js.nets.MLP(in_size=4, out_size=1, width_size=64, depth=3, activation="linear", scaling=scaling, key=jr.key(1)),
        x,
        -jnp.ones((1, 1)),
    )
    solve = lambda rate: js.solve(problem, js.RichLimit(rate=rate, nodes=2000), 2000 * rate)
    with pytest.warns(UserWarning, match=r"sampling error .* a linear network has no such error: use a smaller rate"):
        solve(0.06)
    calm = solve(0.01).certificate
    assert calm is not None
    assert calm.trust > 15


@pytest.mark.parametrize("rate", [-0.2, np.nan, np.inf, 0.0])
def test_a_rate_that_is_traced_and_bad_is_invalid(rate):
    limit = lambda rate: js.RichLimit(rate=rate, nodes=4)
    run = jax.jit(lambda rate: js.solve(_problem(64, 2, "linear"), limit(rate), [0.0, 1.0], throw=False).result)
    assert run(rate) == js.RESULTS.invalid


def test_times_that_no_step_reaches_stay_what_they_were():
    run = js.solve(_problem(64, 2, "linear"), js.RichLimit(rate=1e-4, nodes=4), [0.0, 2e-4, 3e6], throw=False)
    np.testing.assert_allclose(run.ts, [0.0, 2e-4, 3e6], rtol=1e-6)
    assert np.isnan(run["loss"]).tolist() == [False, False, True]
    assert run.result == js.RESULTS.max_steps


class Normalized(eqx.Module):
    """A network with batch normalization, which has a state."""

    low: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    high: eqx.nn.Linear

    def __init__(self):
        self.low, self.high = eqx.nn.Linear(2, 8, key=jr.key(0)), eqx.nn.Linear(8, 2, key=jr.key(1))
        self.norm = eqx.nn.BatchNorm(8, "batch", mode="ema")

    def __call__(self, x, state):
        z, state = self.norm(self.low(x), state)
        return self.high(jnp.tanh(z)), state


IMAGE = (1, 4, 4)


@pytest.mark.parametrize(
    ("make", "shape", "message"),
    [
        (
            lambda **rest: js.nets.MLP(in_size=2, out_size=2, width_size=8, depth=1, bias=True, **rest),
            (2,),
            "no biases: it has biases",
        ),
        (lambda **_: eqx.nn.Linear(2, 2, key=jr.key(0)), (2,), "with hidden layers: it has Linear"),
        (
            lambda **rest: js.nets.ConvNet(in_shape=IMAGE, out_size=2, width_size=2, **rest),
            IMAGE,
            "with hidden layers: it has ConvNet",
        ),
        (
            lambda **rest: js.nets.WideResNet(in_shape=IMAGE, out_size=2, k=1, b=1, **rest),
            IMAGE,
            "with hidden layers: it has WideResNet",
        ),
        (lambda **_: eqx.nn.make_with_state(Normalized)(), (2,), "with hidden layers: it has Normalized"),
    ],
    ids=["biases", "no hidden layer", "convolutions", "residual layers", "batch normalization"],
)
def test_networks_that_it_does_not_describe_are_refused(make, shape, message):
    made = make(scaling=js.nets.Scaling.mean_field(), key=jr.key(0))
    net, state = made if isinstance(made, tuple) else (made, None)
    problem = js.Problem(net, jnp.ones((2, *shape)), jnp.ones((2, 2)), state=state)
    with pytest.raises(js.NotApplicable, match=message):
        js.solve(problem, js.RichLimit(), 1.0)


def test_what_it_does_not_describe_is_refused():
    solve = lambda problem, **options: js.solve(problem, js.RichLimit(**options), TIMES)
    with pytest.raises(js.NotApplicable, match=r"at least N\^\(-1/4\).*it is 0\.125 = N\^-0\.50.*use InfiniteWidth"):
        solve(_problem(64, 1, "tanh", js.nets.Scaling.ntk()))
    with pytest.raises(js.NotApplicable, match="a scaling for gradient descent: it has one for Adam"):
        solve(_problem(64, 1, "tanh", js.nets.Scaling.mup(adam=True)))
    with pytest.raises(MemoryError, match=r"needs .* TB, and .* may be used; give samples=\d+"):
        solve(_problem(64, 2, "tanh"), samples=2**30)
    with pytest.raises(ValueError, match="8 outputs on the training set need samples=256 at least, got 64"):
        solve(_problem(64, 2, "tanh"), samples=64)
    with pytest.raises(js.SolveError, match="max_steps"):
        solve(_problem(64, 2, "linear"), rate=RATE, nodes=STEPS - 1)
    with pytest.raises(js.SolveError, match="diverged"):
        js.solve(_problem(64, 2, "linear"), js.RichLimit(rate=20.0, nodes=STEPS), [120.0])


@pytest.mark.usefixtures("as_users")
def test_bad_arguments():
    with pytest.raises(ValueError, match="samples must be a power of two, at least 32, got 100"):
        js.RichLimit(samples=100)
    with pytest.raises(ValueError, match="seed must be an integer >= 0, got"):
        js.RichLimit(seed=-1)
    assert js.RichLimit(seed=np.int64(3)).seed == 3  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="rate must be"):
        js.RichLimit(rate=0.0)
    with pytest.raises(TypeError, match="dense networks with hidden layers"):
        js.limits(js.Problem(eqx.nn.Linear(2, 2, key=jr.key(0)), X, Y))


def test_limits_by_their_exponents():
    rules = {
        "RICH": [js.nets.Scaling.mean_field(), js.nets.Scaling.mup(), js.nets.Scaling.lazy(256**-0.5)],
        "LAZY": [js.nets.Scaling.ntk()],
        "FROZEN": [js.nets.Scaling.mean_field(eta=1 / 256)],
        "UNSTABLE": [js.nets.Scaling.standard()],
    }
    for name, some in rules.items():
        for rule in some:
            found = js.limits(_problem(256, 2, "tanh", rule))
            assert found.kind.name == name, rule
            lazy = found.richness_exponent < -0.25
            assert lazy == (abs(found.richness_exponent + 0.5) < 0.01)
    assert isinstance(js.limits(_problem(256, 1, "tanh", js.nets.Scaling.ntk())).dynamics, js.InfiniteWidth)
    for name in ("FROZEN", "UNSTABLE"):
        with pytest.raises(ValueError, match=r"the speed is N\^-?[01]\.\d+ at width 256; multiply .* eta by N\^"):
            _ = js.limits(_problem(256, 2, "tanh", rules[name][0])).dynamics


def test_limits_are_those_of_gradient_descent():
    with pytest.raises(TypeError, match=r"(?s)scaling is for Adam.*gradient descent.*Scaling.mup\(\)"):
        js.limits(_problem(8, 2, "tanh", js.nets.Scaling.mup(adam=True)))


def test_a_limit_made_lazy_by_gamma_is_solved():
    """Of mean field with gamma = 16 at width 256 the output is that of the standard kernel scaling."""
    ts, lazy = [0.0, 1.0], js.nets.Scaling.mean_field(16.0, eta=1 / 256)
    both = [_problem(256, 1, "tanh", rule) for rule in (lazy, js.nets.Scaling.ntk())]
    found = js.limits(both[0])
    assert found.kind.name == "LAZY"
    runs = [js.solve(problem, found.dynamics, ts, observe=js.observe.outputs())["outputs"] for problem in both]
    np.testing.assert_allclose(runs[0] - runs[0][:1], runs[1] - runs[1][:1], rtol=1e-4)


def test_infinite_times_are_out_of_reach():
    with pytest.raises(ValueError, match="ts ends in inf, which RichLimit does not reach: give a finite last time"):
        js.solve(_problem(8, 2, "linear", js.nets.Scaling.mup()), js.RichLimit(), jnp.inf)
